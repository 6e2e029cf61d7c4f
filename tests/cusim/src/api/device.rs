//! Devices: how many, and what they are like.

use super::{put, put_text, text};
use crate::config;
use crate::error::{Code, Result};
use crate::module::SHARED_OPT_IN;
use crate::state;
use std::ffi::{c_char, c_int, c_uint};

api! {
    Init fn cuDeviceGetCount(count: *mut c_int) { put(count, state::lock().visible.len() as c_int) }
    Init fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        state::lock().device(ordinal)?;
        put(device, ordinal)
    }
    Init fn cuDeviceGetName(name: *mut c_char, n: c_int, device: c_int) {
        let number = state::lock().device(device)?;
        put_text(name, n, &format!("cusim {number}"))
    }
    Init fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        let number = state::lock().device(device)?;
        put(bytes, config::of(number).memory)
    }
    Init fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) { put(uuid, self::uuid(device)?) }
    Init fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) { put(uuid, self::uuid(device)?) }
    Init fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        let number = state::lock().device(device)?;
        put(value, self::attribute(attribute, number)?)
    }
    Init fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: c_int) {
        state::lock().device(device)?;
        let compute = config::read().compute;
        put(major, compute / 10)?;
        put(minor, compute % 10)
    }
    Init fn cuDeviceGetPCIBusId(id: *mut c_char, n: c_int, device: c_int) {
        let number = state::lock().device(device)?;
        put_text(id, n, &pci_bus_id(number))
    }
    Init fn cuDeviceGetByPCIBusId(device: *mut c_int, id: *const c_char) {
        let id = text(id)?.to_str().map_err(|_| Code::INVALID_VALUE)?.to_lowercase();
        let state = state::lock();
        let found = state.visible.iter().find(|number| pci_bus_id(**number).to_lowercase() == id);
        put(device, state.ordinal(*found.ok_or(Code::INVALID_DEVICE)?))
    }
    Init fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        let state = state::lock();
        let (device, peer) = (state.device(device)?, state.device(peer)?);
        put(can, c_int::from(device != peer && config::read().peer))
    }
    Init fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
        let mut state = state::lock();
        let number = state.device(device)?;
        put(context, state.retain_primary(number)?)
    }
    Init fn cuDevicePrimaryCtxRelease_v2(device: c_int) { release(device, false) }
    Init fn cuDevicePrimaryCtxReset_v2(device: c_int) { release(device, true) }
    Init fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) {
        let state = state::lock();
        let number = state.device(device)?;
        let context = state.primary.get(&number).and_then(|handle| state.contexts.get(handle));
        put(flags, context.map_or(0, |context| context.flags))?;
        put(active, c_int::from(context.is_some()))
    }
    Init fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) {
        let mut state = state::lock();
        let number = state.device(device)?;
        let handle = state.primary.get(&number).copied();
        if let Some(context) = handle.and_then(|handle| state.contexts.get_mut(&handle)) {
            context.flags = flags;
        }
        Ok(())
    }
}

fn release(device: c_int, reset: bool) -> Result {
    let handle = {
        let mut state = state::lock();
        let number = state.device(device)?;
        let handle = *state.primary.get(&number).ok_or(Code::INVALID_CONTEXT)?;
        let context = state.contexts.get_mut(&handle).ok_or(Code::INVALID_CONTEXT)?;
        context.retained -= 1;
        if context.retained > 0 && !reset {
            return Ok(());
        }
        handle
    };
    crate::context::destroy(handle)
}

fn uuid(device: c_int) -> Result<[u8; 16]> {
    let mut uuid = *b"cusim device 00\0";
    uuid[15] = state::lock().device(device)? as u8;
    Ok(uuid)
}

/// Domain, bus and device, as configured or made up.
fn pci_bus_id(number: usize) -> String {
    let config = config::read();
    let given = config.pci.split(',').map(str::trim).filter(|id| !id.is_empty()).nth(number);
    given.map_or_else(|| format!("0000:{:02X}:00.0", 0x17 + number * 0x13), str::to_owned)
}

/// One of the three numbers of a PCI bus id.
fn pci(number: usize, part: usize) -> c_int {
    let id = pci_bus_id(number);
    let part = id.split([':', '.']).nth(part).and_then(|hex| c_int::from_str_radix(hex, 16).ok());
    part.unwrap_or(0)
}

/// `CUdevice_attribute` by number: those of a data-centre GPU where the configuration says nothing.
fn attribute(attribute: c_int, number: usize) -> Result<c_int> {
    let config = config::read().clone();
    Ok(match attribute {
        1..=3 => 1024,    // threads of a block, in x, in y
        4 => 64,          // in z
        5 => c_int::MAX,  // grid in x
        6 | 7 => 65535,   // in y and z
        8 => 48 << 10,    // shared memory of a block
        9 => 64 << 10,    // constant memory
        10 => 32,         // threads of a warp
        11 => c_int::MAX, // pitch
        12 | 82 => 65536, // registers of a block, of a multiprocessor
        13 => 1_980_000,  // clock, kHz
        14 => 512,        // texture alignment
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 90 | 91 | 95 | 98 | 99 | 102 | 115 => 1, // plain capabilities
        16 => config.multiprocessors,
        32 => 1, // ECC
        33 => pci(number, 1),
        34 => pci(number, 2),
        36 => 2_619_000, // memory clock, kHz
        37 => 5120,      // memory bus, bits
        38 => 50 << 20,  // L2 cache
        39 => 2048,      // threads of a multiprocessor
        40 => 3,         // copy engines
        50 => pci(number, 0),
        51 => 32, // pitch alignment of textures
        75 => config.compute / 10,
        76 => config.compute % 10,
        81 => 228 << 10, // shared memory of a multiprocessor
        97 => SHARED_OPT_IN,
        106 => 32,      // blocks of a multiprocessor
        111 => 1 << 10, // reserved shared memory of a block
        17..=149 => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}
