//! The symbols of libtorch that are left in the release program, since rusttorch-data names them where a
//! tensor would be made or dropped. None is made here, so none of these may be called: each ends the program.

macro_rules! never_called {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            eprintln!("{} was called: this benchmark has no libtorch", stringify!($name));
            std::process::abort();
        }
    )* };
}

never_called! {
    at_free ats_free ats_float atg_zeros atg_add_scalar get_and_reset_last_err
    atc_cuda_device_count atc_cuda_is_available atc_cudnn_is_available
}
