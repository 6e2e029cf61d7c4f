//! The one entry point that is not CUDA's: commands from a test, as text, and the answer as text.

use crate::config;
use crate::detector::{Kind, Span};
use crate::error::Code;
use crate::fault::Fault;
use crate::memory::Found;
use crate::state;
use crate::{context, entry};
use std::ffi::{CStr, CString, c_char};

/// # Safety
/// `command` is a string that ends in NUL. The answer is freed with [`cusim_free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cusim_command(command: *const c_char) -> *mut c_char {
    // SAFETY: as above.
    let command = unsafe { CStr::from_ptr(command) }.to_string_lossy();
    let (verb, rest) = command.split_once(' ').unwrap_or((&command, ""));
    let answer = answer(verb, rest).unwrap_or_else(|reason| format!("error {reason}"));
    CString::new(answer.replace('\0', " ")).unwrap_or_default().into_raw()
}

/// # Safety
/// `answer` comes from [`cusim_command`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cusim_free(answer: *mut c_char) {
    // SAFETY: as above.
    drop(unsafe { CString::from_raw(answer) });
}

fn answer(verb: &str, rest: &str) -> Result<String, String> {
    let mut numbers =
        rest.split(' ').map(|word| word.parse::<usize>().map_err(|_| format!("no number: {word:?}")));
    let mut number = move || numbers.next().unwrap_or_else(|| Err("a number is missing".into()));
    match verb {
        "config" => return Ok(config::read().to_text()),
        "device" => return Ok(config::of(number()?).to_text()),
        "configure_device" => {
            let (number, rest) = rest.split_once('\n').ok_or("no settings")?;
            let number = number.trim().parse().map_err(|_| format!("no number: {number:?}"))?;
            let mut new = config::of(number);
            new.apply(rest)?;
            config::set_apart(number, new);
        }
        "strays" => return Ok(entry::strays().to_string()),
        "report" => return Ok(report(rest == "take")),
        "configure" => {
            let mut new = config::read().clone();
            new.apply(rest)?;
            config::replace(new);
        }
        "fail" => {
            let fault = Fault::from_text(rest).ok_or_else(|| format!("no fault: {rest:?}"))?;
            state::lock().faults.add(fault);
        }
        "heal" => state::lock().faults.clear(),
        "poison" => poison(number()?, Code(number()? as i32), false)?,
        "lose" => poison(number()?, Code(number()? as i32), true)?,
        "shut_down" => entry::shut_down(),
        "touch" => touch(number()?, number()?, number()? != 0)?,
        "reset" => reset(),
        _ => return Err(format!("no command: {verb:?}")),
    }
    Ok("ok".into())
}

/// Writes the report where the configuration asks for it, at the end of the process.
pub fn leave_report() {
    let path = config::read().report.clone();
    if !path.is_empty()
        && let Err(error) = std::fs::write(&path, report(false))
    {
        eprintln!("cusim: no report in {path}: {error}");
    }
}

fn report(take: bool) -> String {
    let mut state = state::lock();
    let state = &mut *state;
    let mut lines = vec![format!("checked {}", state.detector.checked)];
    let findings =
        [("race", &state.detector.races), ("host", &state.detector.host_races), ("misuse", &state.misuse)];
    for (kind, findings) in findings {
        lines.extend(findings.lines().map(|(text, count)| format!("{kind} {count} {text}")));
    }
    lines.extend(state.leaks.iter().map(|text| format!("leak {text}")));
    lines.extend(state.unknown.iter().map(|name| format!("unknown {name}")));
    lines.extend(state.calls.iter().map(|(name, n)| format!("call {n} {name}")));
    for (name, threads) in &state.callers {
        lines.extend(threads.iter().map(|thread| format!("caller {name} {thread}")));
    }
    lines.extend(state.live().iter().map(|(kind, n)| format!("live {n} {kind}")));
    if take {
        state.detector.clear();
        state.misuse.clear();
        state.leaks.clear();
        state.unknown.clear();
        state.calls.clear();
        state.callers.clear();
    }
    lines.join("\n")
}

fn poison(device: usize, code: Code, lose: bool) -> Result<(), String> {
    let mut state = state::lock();
    if lose {
        state.lost.insert(device, code);
    }
    let mut found = lose;
    for context in state.contexts.values().filter(|context| context.device == device) {
        context.poison.set(code);
        found = true;
    }
    found.then_some(()).ok_or_else(|| format!("device {device} has no context"))
}

/// The test itself reads or writes memory, and says so.
fn touch(address: usize, bytes: usize, write: bool) -> Result<(), String> {
    let mut state = state::lock();
    let span = Span::bytes(address, bytes);
    let Found::Inside(block) = state.memory.find(&span) else { return Err("no memory of CUDA's".into()) };
    let touch = block.touch(span, if write { Kind::Write } else { Kind::Read });
    state.detector.touch_from_host("the host", &touch);
    Ok(())
}

/// A process that has not used the driver yet, with the configuration of the environment.
fn reset() {
    let contexts: Vec<usize> = state::lock().contexts.keys().copied().collect();
    for handle in contexts {
        let _ = context::destroy(handle);
    }
    state::lock().reset();
    config::replace(config::Config::from_environment());
    config::forget_devices();
    entry::disown();
}
