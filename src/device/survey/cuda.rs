//! The GPUs that the driver shows. Each is opened for a moment: that alone tells what memory is free.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute};

use super::system::System;
use super::{Driver, Gpu, LOCK_TRIED, pci};
use crate::device::cuda::driver::{Library, driver, guarded, is_hiding};
use crate::error::{Error, ErrorKind, Result};

/// Completes what is known of the driver, and lists its GPUs.
pub(super) fn look(system: &System, found: &mut Driver) -> Vec<Gpu> {
    found.hidden = is_hiding();
    if let Ok(library) = Library::load() {
        found.library = library.path().map(Into::into);
        found.api_version = library.version().map(|v| (v.major(), v.minor()));
    }
    let gpus =
        driver().and_then(|driver| (0..driver.devices()).map(|n| gpu(system, n)).collect::<Result<_>>());
    gpus.unwrap_or_else(|error| {
        found.unusable = Some(error.to_string());
        Vec::new()
    })
}

fn gpu(system: &System, ordinal: u32) -> Result<Gpu> {
    let what = format!("looking at cuda:{ordinal}");
    let found = guarded(&what, || facts(ordinal))?;
    let mut gpu = found.map_err(|error| {
        Error::new(ErrorKind::Device, format!("cuda:{ordinal} does not answer: {}", meaning(error)))
    })?;
    let attachment = pci::attachment(system, &gpu.pci_address);
    (gpu.link, gpu.link_max) = (attachment.link, attachment.link_max);
    (gpu.numa_node, gpu.numa_cpus) = (attachment.numa_node, attachment.numa_cpus);
    Ok(gpu)
}

/// All but how it is attached.
fn facts(ordinal: u32) -> Result<Gpu, DriverError> {
    use CUdevice_attribute as Of;
    let device = result::device::get(ordinal as i32)?;
    // SAFETY: the device is one that the driver gave.
    let number = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    let count = |attribute| number(attribute).map(|n| u32::try_from(n).unwrap_or(0));
    let (memory_free, lock_refused) = match Opened::new(device) {
        Ok(_opened) => (result::mem_get_info().ok().map(|(free, _)| free as u64), lock_once().err()),
        Err(error) => (None, Some(error)),
    };
    Ok(Gpu {
        ordinal,
        name: result::device::get_name(device)?,
        compute_capability: (
            count(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            count(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device) }? as u64,
        memory_free,
        copy_engines: count(Of::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
        // The function is 0 for all but virtual ones, which sysfs of a guest shows as 0 too.
        pci_address: format!(
            "{:04x}:{:02x}:{:02x}.0",
            count(Of::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            count(Of::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            count(Of::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        ),
        link: None,
        link_max: None,
        numa_node: None,
        numa_cpus: None,
        lock_refused: lock_refused.map(meaning),
    })
}

/// The code's name, and the driver's text for it.
fn meaning(error: DriverError) -> String {
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    format!("{:?}, {}", error.0, text.unwrap_or_else(|_| "which the driver does not explain".to_string()))
}

/// Allocates page-locked memory and frees it.
fn lock_once() -> Result<(), DriverError> {
    // SAFETY: the memory is freed once, at once, and not touched.
    unsafe { result::free_host(result::malloc_host(LOCK_TRIED as usize, 0)?) }
}

/// A device's primary context, current on this thread until dropped; then the one that was is again.
struct Opened {
    device: CUdevice,
    before: CUcontext,
}

impl Opened {
    fn new(device: CUdevice) -> Result<Self, DriverError> {
        let before = result::ctx::get_current()?.unwrap_or(std::ptr::null_mut());
        // SAFETY: the device is one that the driver gave; `drop` releases what is retained here, once.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        let opened = Self { device, before };
        // SAFETY: the context is retained until `opened` is dropped, which makes another one current first.
        unsafe { result::ctx::set_current(context) }?;
        Ok(opened)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Nothing is left to be done where these fail: the device is then lost, and who uses it next is told.
        // SAFETY: `before` was current on this thread, which has not left since: its owner keeps it, or it is null.
        let _ = unsafe { result::ctx::set_current(self.before) };
        // SAFETY: retained once, in `new`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}
