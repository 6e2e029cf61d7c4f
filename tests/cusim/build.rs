//! The kernels for the host, and the name under which the loader knows the library.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rerun-if-changed=emu");
    cc::Build::new().cpp(true).std("c++17").opt_level(2).file("emu/table.cpp").compile("cusim_emu");
}
