//! The kernels for the host, and the name under which the loader knows the library.

use std::path::PathBuf;

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    println!("cargo:rerun-if-changed=emu");
    println!("cargo:rerun-if-changed=../../kernels");
    let emu = std::fs::read_dir("emu").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut sources: Vec<PathBuf> = emu.filter(|path| path.extension().is_some_and(|e| e == "cpp")).collect();
    sources.sort();
    // A misaligned access or one out of bounds stops the process at once, as a GPU would stop the kernel.
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .warnings(false) // the script that compiles them for the GPU is the one that is strict
        .flag_if_supported("-fsanitize=alignment,bounds,shift")
        .flag_if_supported("-fsanitize-undefined-trap-on-error")
        .files(sources)
        .compile("cusim_emu");
}
