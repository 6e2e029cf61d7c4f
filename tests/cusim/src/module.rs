//! Modules of PTX, their functions, and launches.

use crate::config;
use crate::context;
use crate::detector::{Kind, Span, Touch};
use crate::error::{Code, Result};
use crate::kernel::{self, EmuKernel, Launch, Use};
use crate::memory::{Found, Place};
use crate::ptx::{self, Ptx};
use crate::state::{self, State};
use crate::stream::Work;
use crate::work::Action;
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct Module {
    pub context: usize,
    functions: BTreeMap<String, usize>,
}

pub struct Function {
    pub context: usize,
    pub module: usize,
    name: String,
    params: Vec<usize>,
    kernel: Option<&'static EmuKernel>,
    pub dynamic_shared: i32,
}

const MAX_THREADS: u64 = 1024;
const SHARED: u32 = 48 << 10;
pub const SHARED_OPT_IN: i32 = 227 << 10;

/// Loads PTX text (without its NUL).
pub fn load(image: &[u8]) -> Result<usize> {
    if image.starts_with(b"\x7fELF") || image.starts_with(b"\x50\xed\x55\xba") {
        return Err(Code::NO_BINARY_FOR_GPU); // machine code: there is no such GPU
    }
    let ptx = std::str::from_utf8(image).ok().and_then(Ptx::parse).ok_or(Code::INVALID_PTX)?;
    let (driver, compute) = {
        let config = config::read();
        (config.driver_version, config.compute)
    };
    if ptx.version > ptx::newest(driver) {
        return Err(Code::UNSUPPORTED_PTX_VERSION);
    }
    if ptx.target > compute {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    let context = context::current()?;
    let mut state = state::lock();
    let handle = state.new_handle();
    let mut functions = BTreeMap::new();
    for entry in ptx.kernels {
        let function = state.new_handle();
        functions.insert(entry.name.clone(), function);
        let kernel = kernel::find(&entry.name);
        let made = Function {
            context,
            module: handle,
            name: entry.name,
            params: entry.params,
            kernel,
            dynamic_shared: 0,
        };
        state.functions.insert(function, made);
    }
    state.modules.insert(handle, Module { context, functions });
    Ok(handle)
}

pub fn unload(handle: usize) -> Result {
    let mut state = state::lock();
    state.modules.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
    state.functions.retain(|_, function| function.module != handle);
    Ok(())
}

pub fn function(module: usize, name: &str) -> Result<usize> {
    let state = state::lock();
    let module = state.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
    module.functions.get(name).copied().ok_or(Code::NOT_FOUND)
}

pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
}

impl Shape {
    fn check(&self, dynamic_shared: i32) -> Result {
        let [bx, by, bz] = self.block.map(u64::from);
        let most = [i32::MAX as u32, 65535, 65535];
        let grid = self.grid.iter().zip(most).all(|(n, most)| *n >= 1 && *n <= most);
        let block = bx * by * bz >= 1 && bx * by * bz <= MAX_THREADS && bz <= 64;
        if !grid || !block || self.shared > SHARED.max(dynamic_shared.unsigned_abs()) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }
}

/// Launches a function. `read` gives the bytes of the parameter with this index and size.
pub fn launch(
    call: &'static str,
    handle: usize,
    shape: &Shape,
    stream: usize,
    read: impl Fn(usize, usize) -> Result<Vec<u8>>,
) -> Result {
    let mut state = state::lock();
    let key = state.resolve(stream)?;
    let function = state.functions.get(&handle).ok_or(Code::INVALID_HANDLE)?;
    let owner = state.stream(key)?.context;
    // A kernel goes to a stream of its own context, which is current.
    if function.context != owner || context::current()? != owner {
        return Err(Code::INVALID_HANDLE);
    }
    shape.check(function.dynamic_shared)?;
    let (name, kernel) = (function.name.clone(), function.kernel);
    let sizes = function.params.iter().enumerate();
    let mut params = sizes.map(|(index, size)| read(index, *size)).collect::<Result<Vec<_>>>()?;
    let known = kernel.and_then(|kernel| kernel.uses(&params));
    if kernel.is_none() && !config::read().unknown_kernels {
        crate::unknown::complain(&format!("kernel {name}"));
        state.blame(call, 0, || format!("UNKNOWN KERNEL: {name} is not in the table of emulated kernels"));
        return Err(Code::NOT_SUPPORTED);
    }
    let uses = known.unwrap_or_else(|| state.pointed_to(&params));
    let touches = state.check_uses(&name, owner, &uses);
    let faults = touches.is_none();
    state.to_driver_addresses(&mut params);
    let (grid, block) = (shape.grid, shape.block);
    let launch = Launch { name: name.clone(), kernel, grid, block, params, faults };
    let work = Work::new(call, Action::Kernel(Arc::new(launch)));
    state.submit(key, work.touching(touches.unwrap_or_default()).detail(format!(" of {name}")))?;
    Ok(())
}

/// The 8-byte words of parameters.
fn words(params: &[Vec<u8>]) -> impl Iterator<Item = usize> {
    params.iter().flat_map(|param| param.chunks_exact(8)).map(|word| {
        usize::from_ne_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]])
    })
}

impl State {
    /// Without better knowledge a kernel reads and writes all that its parameters point to.
    fn pointed_to(&self, params: &[Vec<u8>]) -> Vec<Use> {
        let whole = |address| {
            let block = self.memory.at(address)?;
            Some(Use { address: block.base, bytes: block.len, kind: Kind::Write })
        };
        words(params).filter_map(whole).collect()
    }

    /// `None` where a use is not allowed; what is wrong with it is then reported.
    fn check_uses(&mut self, name: &str, owner: usize, uses: &[Use]) -> Option<Vec<Touch>> {
        let mut touches = vec![];
        let mut trouble = vec![];
        let context = self.contexts.get(&owner)?;
        for u in uses {
            let span = Span::bytes(u.address, u.bytes);
            match self.memory.find(&span) {
                Found::Inside(block) => match block.place {
                    Place::Device(device)
                        if device != context.device && !context.peers.contains(&block.context) =>
                    {
                        trouble.push(format!(
                            "BAD POINTER: kernel {name} is given {} without peer access",
                            block.named()
                        ));
                    }
                    _ => touches.push(block.touch(span, u.kind)),
                },
                Found::Over(block) => trouble.push(format!(
                    "OUT OF BOUNDS: kernel {name} touches {} B from byte {} of {}",
                    u.bytes,
                    u.address - block.base,
                    block.named()
                )),
                Found::Freed(by) => {
                    trouble
                        .push(format!("USE AFTER FREE: kernel {name} touches memory that was freed by {by}"));
                }
                Found::Unknown => {
                    trouble.push(format!(
                        "BAD POINTER: kernel {name} is given an address that is no memory of CUDA's"
                    ));
                }
            }
        }
        let allowed = trouble.is_empty();
        for text in trouble {
            self.blame(&format!("kernel {name}"), 0, || text);
        }
        allowed.then_some(touches)
    }

    /// Page-locked memory is used through the driver's own mapping: the program's may be guarded.
    fn to_driver_addresses(&self, params: &mut [Vec<u8>]) {
        for word in params.iter_mut().flat_map(|param| param.chunks_exact_mut(8)) {
            let address = usize::from_ne_bytes([
                word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
            ]);
            if let Some(block) = self.memory.at(address) {
                word.copy_from_slice(&block.driver_address(address).to_ne_bytes());
            }
        }
    }
}
