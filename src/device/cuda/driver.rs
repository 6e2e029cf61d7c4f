//! Whether there is a driver that this flavour can use, found out before cudarc's first call.
//!
//! cudarc loads the driver's library at its first call and panics where there is none, and again at the first call of
//! a function that the library lacks. Here the same library is loaded first, under cudarc's own names in its order, and
//! looked at: what does not work is an error in one line that says what was found and what to do.
//!
//! Success is kept for the life of the process. So is a library that loaded, usable or not, since it is the one that
//! cudarc has or will have. All else is tried again at the next call: a service may start before the driver does, and
//! cudarc too looks again after it found none.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::driver::sys::{CUevent, CUresult};

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Process;

/// The driver's functions that this flavour calls, itself or through cudarc: one that is missing would be a panic of
/// cudarc's in the middle of an epoch. Whoever calls another one adds it here.
const NEEDED: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuCtxGetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

/// The oldest version of the driver's API that the bindings are for: 12.0, which R525 brought.
const OLDEST: Version = Version(12_000);

/// A version of the driver's API, as the driver counts: 12.4 is 12040.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u32);

impl Version {
    pub(crate) fn major(self) -> u32 {
        self.0 / 1000
    }

    pub(crate) fn minor(self) -> u32 {
        self.0 % 1000 / 10
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

/// A driver that can be used: initialised, new enough, with every function that is called, and with a device.
#[derive(Debug)]
pub(crate) struct Driver {
    devices: u32,
    process: Process,
}

impl Driver {
    /// How many devices it shows to this process: at least one.
    pub(crate) fn devices(&self) -> u32 {
        self.devices
    }
}

/// The driver, initialised. The first call that succeeds is the last that looks.
///
/// # Errors
/// [`ErrorKind::Device`] where it can't be used, with the reason and what to do about it; [`ErrorKind::Forked`] in a
/// child of the process that initialised it.
pub(crate) fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    let driver = match DRIVER.get() {
        Some(driver) => driver,
        None => {
            let found = Library::load()?.start()?;
            DRIVER.get_or_init(|| found)
        }
    };
    if driver.process.is_forked() {
        let text = "this process was forked from one that uses CUDA, which a child can't go on with: spawn instead \
                    of forking, or fork before CUDA is used";
        return Err(Error::new(ErrorKind::Forked, text));
    }
    Ok(driver)
}

/// Runs `call`, which may be the first to call some function of the driver through cudarc; `what` names it.
///
/// It is the last resort: [`NEEDED`] keeps cudarc from panicking, since a panic's text reaches stderr before anybody
/// can catch it.
///
/// # Errors
/// [`ErrorKind::Device`] where it panicked.
pub(crate) fn guarded<T>(what: &str, call: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic_text(&*panic);
        unusable(format!("{what} failed: the CUDA bindings panicked: {text}"))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

fn unusable(text: String) -> Error {
    Error::new(ErrorKind::Device, text)
}

/// Stands in for cudarc's function of this name where the bindings are linked with the driver: see [`names`].
#[allow(dead_code, reason = "called where cudarc has none")]
fn get_lib_name_candidates(_: &str) -> Vec<String> {
    Vec::new()
}

/// The names under which cudarc looks for the driver's library, in its order. None where it does not look: another
/// crate has asked for `cudarc/dynamic-linking`, and the library came with the process.
fn names() -> Vec<String> {
    // cudarc has the function only where it looks itself; then the inner scope's name wins over the one above.
    #[allow(unused_imports, reason = "cudarc has it where it loads the library itself")]
    use cudarc::*;
    ["cuda", "nvcuda"].iter().flat_map(|library| get_lib_name_candidates(library)).collect()
}

/// The library that cudarc calls.
#[derive(Debug)]
pub(crate) struct Library {
    handle: libloading::Library,
    name: String,
    path: Option<PathBuf>,
}

impl Library {
    /// Loads it. It stays loaded until the process ends: a driver has threads and exit handlers, and cudarc keeps
    /// pointers into it.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] where there is none, or none that loads.
    pub(crate) fn load() -> Result<&'static Self> {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        let found = Self::find(&names())?;
        // Should two threads get here at once, one handle of the same library is closed, which the other keeps.
        Ok(LIBRARY.get_or_init(|| found))
    }

    /// The first of `names` that loads.
    fn find(names: &[String]) -> Result<Self> {
        let (Some(first), Some(last)) = (names.first(), names.last()) else {
            return Ok(Self::new(process_itself()?, "the process's own libcuda".to_string()));
        };
        let mut broken = None;
        for name in names {
            // SAFETY: loading runs the library's initialisers. It is the one that cudarc would load at its first call,
            // found under the same name by the same loader, so nothing runs that would not run anyway.
            match unsafe { libloading::Library::new(name) } {
                Ok(handle) => return Ok(Self::new(handle, name.clone())),
                Err(error) => broken = broken.or_else(|| says_more_than_absent(&error, name)),
            }
        }
        Err(match broken {
            Some(why) => unusable(format!(
                "no CUDA driver: a library of its name is there and does not load ({why}): remove it, or install the \
                 NVIDIA driver for this system again"
            )),
            None => {
                let text = format!(
                    "no CUDA driver: no library was found under any of its names ({first} … {last}, {} in all): \
                     install the NVIDIA driver, R525 or newer; a container gets the host's with --gpus all",
                    names.len()
                );
                unusable(text).caused_by(anyhow::anyhow!("tried {}", names.join(", ")))
            }
        })
    }

    fn new(handle: libloading::Library, name: String) -> Self {
        let mut library = Self { handle, name, path: None };
        let path = NEEDED.iter().filter_map(|name| library.address(name)).find_map(file_of);
        library.path = path;
        library
    }

    /// Where it lies, as the loader found it.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// For messages.
    fn place(&self) -> String {
        self.path.as_ref().map_or_else(|| self.name.clone(), |path| path.display().to_string())
    }

    fn address(&self, name: &str) -> Option<*const ()> {
        // SAFETY: an address is what every symbol has; nothing is read through it or called here.
        unsafe { self.handle.get::<*const ()>(name) }.ok().map(|symbol| *symbol)
    }

    /// The version of the API that it is for, where it says so.
    pub(crate) fn version(&self) -> Option<Version> {
        let mut version: c_int = 0;
        // SAFETY: the signature is cuda.h's: `CUresult cuDriverGetVersion(int *)`. It needs no `cuInit`, and writes an
        // int to the place it is given, which lives across the call.
        let code = unsafe {
            let call =
                self.handle.get::<unsafe extern "C" fn(*mut c_int) -> c_int>("cuDriverGetVersion").ok()?;
            call(&mut version)
        };
        (code == 0).then(|| u32::try_from(version).ok().map(Version)).flatten()
    }

    /// Initialises the driver.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] with what is wrong with it.
    fn start(&self) -> Result<Driver> {
        let version = self.version();
        // Before what is missing, which follows from it.
        if let Some(version) = version.filter(|v| *v < OLDEST) {
            return Err(unusable(format!(
                "the CUDA driver is too old: {} is for CUDA {version}, and {OLDEST} is needed: install R525 or newer",
                self.place()
            )));
        }
        let missing: Vec<_> = NEEDED.iter().filter(|name| self.address(name).is_none()).copied().collect();
        if !missing.is_empty() {
            let (shown, more) = (missing[..missing.len().min(3)].join(", "), missing.len().saturating_sub(3));
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            return Err(unusable(format!(
                "{} is no CUDA driver that works: it lacks {shown}{more}: {}",
                self.place(),
                if self.is_in_stubs() {
                    STUB
                } else {
                    "take it off the library path, so that the driver's is found"
                }
            )));
        }
        let code = self.init()?;
        if code != 0 {
            return Err(self.refused("cuInit", code));
        }
        let (code, devices) = self.count()?;
        match (code, u32::try_from(devices)) {
            (0, Ok(devices)) if devices > 0 => Ok(Driver { devices, process: Process::current() }),
            (0, _) => Err(unusable(format!("the CUDA driver shows no device: {}", no_device()))),
            (code, _) => Err(self.refused("cuDeviceGetCount", code)),
        }
    }

    fn init(&self) -> Result<c_int> {
        // SAFETY: the signature is cuda.h's: `CUresult cuInit(unsigned int)`; 0 is the one flag it takes. It may be
        // called again and on any thread.
        unsafe {
            let call = self.handle.get::<unsafe extern "C" fn(c_uint) -> c_int>("cuInit");
            Ok(call.map_err(|error| self.lost(error))?(0))
        }
    }

    /// What `cuDeviceGetCount` returns, and the count.
    fn count(&self) -> Result<(c_int, c_int)> {
        let mut count: c_int = 0;
        // SAFETY: the signature is cuda.h's: `CUresult cuDeviceGetCount(int *)`. It writes an int to the place it is
        // given, which lives across the call.
        let code = unsafe {
            let call = self.handle.get::<unsafe extern "C" fn(*mut c_int) -> c_int>("cuDeviceGetCount");
            call.map_err(|error| self.lost(error))?(&mut count)
        };
        Ok((code, count))
    }

    /// The milliseconds between two events, written to `ms`. By the driver's first name for it, which every driver has:
    /// cudarc's bindings for CUDA 13 have the one that came with 12.8 only.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] where the function is gone; what the driver says is its answer.
    ///
    /// # Safety
    /// Both are events that live across the call, and the context is current.
    pub(crate) unsafe fn elapsed_time(&self, ms: &mut f32, from: CUevent, to: CUevent) -> Result<CUresult> {
        // SAFETY: the signature is cuda.h's: `CUresult cuEventElapsedTime(float *, CUevent, CUevent)`. It writes a float
        // to the place it is given, which lives across the call; the events are the caller's.
        unsafe {
            let call = self
                .handle
                .get::<unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult>("cuEventElapsedTime");
            Ok(call.map_err(|error| self.lost(error))?(ms, from, to))
        }
    }

    fn lost(&self, error: libloading::Error) -> Error {
        unusable(format!("{} lost a function while in use", self.place())).caused_by(error)
    }

    /// What the driver says a code means: its name and a text, as far as it knows it.
    fn meaning(&self, code: c_int) -> String {
        let ask = |function: &str| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: the signature is cuda.h's: `CUresult cuGetErrorName(CUresult, const char **)`, and the same of
            // `cuGetErrorString`. Each takes any code, and writes a pointer to a static string or null.
            unsafe {
                let call = self
                    .handle
                    .get::<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>(function)
                    .ok()?;
                let found = call(code, &mut text) == 0 && !text.is_null();
                found.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        match (ask("cuGetErrorName"), ask("cuGetErrorString")) {
            (Some(name), Some(text)) => format!("{code} {name}, {text}"),
            (Some(text), None) | (None, Some(text)) => format!("{code} {text}"),
            (None, None) => format!("error {code}"),
        }
    }

    fn is_in_stubs(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.iter().any(|part| part == "stubs"))
    }

    fn refused(&self, function: &str, code: c_int) -> Error {
        let place = self.place();
        if code == 34 || self.is_in_stubs() {
            return unusable(format!(
                "{place} is not the CUDA driver ({function}: {}): {STUB}",
                self.meaning(code)
            ));
        }
        let advice = match code {
            2 => "the host or the device has no memory left for a context".to_string(),
            3 => "CUDA was used in a process that forked this one: spawn instead of forking".to_string(),
            46 => "another process has the device for itself, or it is being reset: `nvidia-smi -q -d COMPUTE,PIDS`"
                .to_string(),
            100 | 101 => no_device(),
            304 => "the system refused the driver something: may this user open /dev/nvidia*?".to_string(),
            802 => "the system is not ready: where GPUs hang on NVSwitch, is nvidia-fabricmanager running?".to_string(),
            803 => "this library and the loaded kernel module are of different releases: reboot after an update of \
                    the driver; a container must take the library from the host and not from its image"
                .to_string(),
            804 => "the forward-compatibility package does not support this device: take the `compat` folder off the \
                    library path, or update the driver"
                .to_string(),
            999 => "often a kernel module that is not loaded or hangs after suspend: `nvidia-smi`, `dmesg`, then load \
                    nvidia_uvm again or reboot"
                .to_string(),
            _ => "`nvidia-smi` and `dmesg` may say more".to_string(),
        };
        unusable(format!(
            "the CUDA driver {place} does not start ({function}: {}): {advice}",
            self.meaning(code)
        ))
    }
}

const STUB: &str = "it is a toolkit's stub, for linking only: take its folder off LD_LIBRARY_PATH, so that the driver's \
                    own libcuda.so.1 is found";

/// Whether CUDA_VISIBLE_DEVICES is set so that it hides every device, as one does on purpose.
pub(crate) fn is_hiding() -> bool {
    matches!(std::env::var("CUDA_VISIBLE_DEVICES").as_deref(), Ok("" | "-1" | "NoDevFiles"))
}

/// What to do where the driver runs and shows no device.
fn no_device() -> String {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(value) if is_hiding() => {
            format!("CUDA_VISIBLE_DEVICES is {value:?}, which hides them all: unset it to use one")
        }
        Ok(value) => format!("CUDA_VISIBLE_DEVICES is {value:?}: does it begin with a GPU that there is?"),
        Err(_) => "is there an NVIDIA GPU, and may this process see it? A container gets it with --gpus all"
            .to_string(),
    }
}

/// The text of a failure to load `name` that is more than that there is no such file.
fn says_more_than_absent(error: &libloading::Error, name: &str) -> Option<String> {
    let text = std::error::Error::source(error)?.to_string();
    // A dependency that is absent reads the same, but for the name.
    let absent = text.contains("No such file") && text.contains(&format!("{name}:"))
        || cfg!(not(unix)) && text.contains("126");
    (!absent).then_some(text)
}

/// The library that has the code at `address`.
#[cfg(unix)]
fn file_of(address: *const ()) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` is a valid place for the answer, all zero is a valid one (null pointers), and the name in it
    // belongs to the loader, which keeps it as long as the library is loaded: that is, for the life of the process.
    let name = unsafe {
        if libc::dladdr(address.cast(), info.as_mut_ptr()) == 0 {
            return None;
        }
        let name = info.assume_init().dli_fname;
        (!name.is_null()).then(|| CStr::from_ptr(name))?
    };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

#[cfg(not(unix))]
fn file_of(_: *const ()) -> Option<PathBuf> {
    None
}

/// A handle on all that the process was linked with.
#[cfg(unix)]
fn process_itself() -> Result<libloading::Library> {
    Ok(libloading::os::unix::Library::this().into())
}

#[cfg(windows)]
fn process_itself() -> Result<libloading::Library> {
    let this = libloading::os::windows::Library::this();
    this.map(Into::into)
        .map_err(|error| unusable("the process can't be searched".to_string()).caused_by(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_that_cudarc_tries() {
        let names = names();
        assert_eq!(
            names.first().unwrap(),
            &format!("{}cuda{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX)
        );
        let theirs = ["cuda", "nvcuda"].map(cudarc::get_lib_name_candidates).concat();
        assert_eq!(names, theirs);
    }

    #[test]
    fn a_panic_of_the_bindings_is_an_error() {
        assert_eq!(guarded("a call", || 3).unwrap(), 3);
        let error = guarded("a call", || -> u8 { panic!("Missing symbol {}", "cuX") }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device);
        assert_eq!(error.message(), "a call failed: the CUDA bindings panicked: Missing symbol cuX");
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(
            [11_040, 12_000, 12_080, 13_010].map(|v| Version(v).to_string()),
            ["11.4", "12.0", "12.8", "13.1"]
        );
        assert!(Version(11_080) < OLDEST && Version(12_000) >= OLDEST);
    }

    #[test]
    #[cfg(unix)]
    #[cfg_attr(miri, ignore = "loads a library")]
    fn what_is_linked_with_the_process_is_found_without_a_name() {
        // It has no libcuda: all is missing, and that is said of the process, not of a file.
        let library = Library::find(&[]).unwrap();
        assert_eq!((library.path(), library.version()), (None, None));
        let error = library.start().unwrap_err();
        assert!(
            error.message().contains("the process's own libcuda") && error.message().contains("cuInit"),
            "{error}"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "loads a library")]
    fn names_under_which_there_is_nothing_are_told_from_what_does_not_load() {
        let absent = ["libno-such-a.so", "libno-such-b.so"].map(String::from);
        let text = Library::find(&absent).unwrap_err().to_string();
        assert!(
            text.contains("libno-such-a.so") && text.contains("libno-such-b.so") && text.contains("2 in all"),
            "{text}"
        );
        let file = tempfile::NamedTempFile::with_suffix(".so").unwrap();
        std::fs::write(file.path(), "no library").unwrap();
        let path = file.path().to_str().unwrap().to_string();
        let text = Library::find(&[absent[0].clone(), path.clone()]).unwrap_err().to_string();
        assert!(text.contains(&path) && text.contains("does not load"), "{text}");
    }
}
