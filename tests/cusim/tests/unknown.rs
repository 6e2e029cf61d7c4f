//! Entry points that are not simulated, and symbols.

mod support;

use cudarc::driver::{CudaContext, sys};
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::null_mut;
use support::sim;
use sys::CUresult::*;

#[test]
fn what_is_not_simulated_fails_by_name() {
    let sim = sim();
    let _context = CudaContext::new(0).unwrap();
    // SAFETY: the function looks at none of its arguments.
    unsafe {
        assert_eq!(sys::cuArrayDestroy(null_mut()), CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(sys::cuIpcCloseMemHandle(0), CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(sys::cuIpcCloseMemHandle(0), CUDA_ERROR_NOT_SUPPORTED);
    }
    let report = sim.report();
    assert_eq!(report.unknown, ["cuArrayDestroy", "cuIpcCloseMemHandle"]);
    assert_eq!(report.calls_of("cuIpcCloseMemHandle"), 2);
    assert_eq!(report.findings().len(), 2);
}

/// The symbols that a function of cudarc's bindings asks for, from the crate's own source.
fn bindings() -> BTreeSet<String> {
    let metadata = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--offline", "--filter-platform=x86_64-unknown-linux-gnu"])
        .output()
        .unwrap();
    let metadata = String::from_utf8(metadata.stdout).unwrap();
    let mut manifests =
        metadata.split("\"manifest_path\":\"").map(|rest| rest.split('"').next().unwrap_or(""));
    let folder =
        manifests.find_map(|path| path.strip_suffix("/Cargo.toml").filter(|f| f.contains("/cudarc-0.19")));
    let folder = folder.unwrap();
    let source = std::fs::read_to_string(format!("{folder}/src/driver/sys/mod.rs")).unwrap();
    let lines: Vec<&str> = source.lines().collect();
    let functions = lines.windows(2).filter_map(|pair| {
        let name = pair[1].strip_prefix("pub unsafe fn ")?.split('(').next()?;
        let ours = !pair[0].starts_with("#[cfg") || pair[0].contains("\"cuda-12000\"");
        (ours && name.starts_with("cu") && name != "culib").then(|| name.to_owned())
    });
    functions.collect()
}

#[test]
fn every_symbol_that_cudarc_can_ask_for_is_there() {
    let _sim = sim();
    let names = bindings();
    assert!(names.len() > 350, "{}", names.len());
    // SAFETY: the symbols are looked up and not called.
    let missing: Vec<_> = names
        .iter()
        .filter(|name| unsafe { sys::culib().get::<*const c_void>(name.as_bytes()) }.is_err())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn functions_are_found_by_name() {
    let sim = sim();
    let _context = CudaContext::new(0).unwrap();
    let mut function: *mut c_void = null_mut();
    let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    // SAFETY: the driver writes to this stack; cuMemFree takes an address, and 0 is free to free.
    unsafe {
        let name = c"cuMemFree".as_ptr();
        sys::cuGetProcAddress_v2(name, &mut function, 12000, 0, &mut status).result().unwrap();
        assert_eq!(status, sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS);
        let free: unsafe extern "C" fn(u64) -> i32 = std::mem::transmute(function);
        assert_eq!(free(0), 0);
        assert_eq!(sim.report().calls_of("cuMemFree_v2"), 1);
        let name = c"cuNoSuchThing".as_ptr();
        let code = sys::cuGetProcAddress_v2(name, &mut function, 12000, 0, &mut status);
        assert_eq!(code, CUDA_ERROR_NOT_FOUND);
        assert!(function.is_null());
    }
}

#[test]
fn nvrtc_finds_the_export_table_function() {
    let _sim = sim();
    let mut table = null_mut::<c_void>().cast_const();
    let id = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the driver writes to this stack.
    assert_eq!(unsafe { sys::cuGetExportTable(&mut table, &id) }, CUDA_ERROR_NOT_FOUND);
    assert!(table.is_null());
}
