//! A program that never asked for a simulated GPU, and that cargo runs with the simulator on its library path:
//! nothing here links the client.

use cudarc::driver::{CudaContext, sys::CUresult};

#[test]
fn a_program_that_did_not_ask_sees_no_device() {
    // SAFETY: this process has one test, and nothing else reads the environment meanwhile.
    std::env::vars_os()
        .filter(|(name, _)| name.to_string_lossy().starts_with("CUSIM_"))
        .for_each(|(name, _)| unsafe { std::env::remove_var(name) });
    assert_eq!(CudaContext::new(0).unwrap_err().0, CUresult::CUDA_ERROR_NO_DEVICE);
}
