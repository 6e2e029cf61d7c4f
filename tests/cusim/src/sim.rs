//! The tests' side: finds the driver that the process uses, and talks to it if it is the simulated one.

use crate::config::Config;
use crate::fault::Fault;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_void};

type Command = unsafe extern "C" fn(*const c_char) -> *mut c_char;
type Free = unsafe extern "C" fn(*mut c_char);

/// The simulated driver in this process.
#[derive(Clone, Copy)]
pub struct Sim {
    command: Command,
    free: Free,
}

/// What the driver has seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Pairs of operations on streams that touch the same memory and that nothing puts in order. One line for
    /// each pair of functions and allocation, however often it happened.
    pub races: Vec<String>,
    /// The host touched or freed memory of work that it had not seen done.
    pub host_races: Vec<String>,
    /// Out of bounds, use after free, bad pointers, calls that are not allowed where they were made.
    pub misuse: Vec<String>,
    /// What was alive when its context ended.
    pub leaks: Vec<String>,
    /// Functions that were called and are not simulated.
    pub unknown: Vec<String>,
    /// Accesses that were checked for races. Zero means that the test proves nothing.
    pub accesses_checked: u64,
    /// Calls by function, without the version in its symbol (`cuMemcpyHtoDAsync`).
    pub calls: BTreeMap<String, u64>,
    /// The names of the threads that called a function.
    pub callers: BTreeMap<String, BTreeSet<String>>,
    /// Live objects by kind: device, host, registered, streams, events, modules, graphs, contexts.
    pub live: BTreeMap<String, u64>,
}

impl Report {
    /// How often a function was called.
    pub fn calls_of(&self, function: &str) -> u64 {
        self.calls.get(crate::entry::base_name(function)).copied().unwrap_or(0)
    }

    /// Whether a thread of this name called any of the functions.
    pub fn has_called(&self, thread: &str, functions: &[&str]) -> bool {
        let callers =
            functions.iter().filter_map(|function| self.callers.get(crate::entry::base_name(function)));
        callers.flatten().any(|caller| caller == thread)
    }

    /// How many objects of a kind are alive.
    pub fn live_of(&self, kind: &str) -> u64 {
        self.live.get(kind).copied().unwrap_or(0)
    }

    /// Everything that is wrong, of any kind.
    pub fn findings(&self) -> Vec<&str> {
        let all = [&self.races, &self.host_races, &self.misuse, &self.leaks, &self.unknown];
        all.into_iter().flatten().map(String::as_str).collect()
    }

    /// Panics with the findings, if there are any, or if nothing was checked.
    #[track_caller]
    pub fn assert_clean(&self) {
        let findings = self.findings();
        assert!(findings.is_empty(), "the simulated driver found:\n{}", findings.join("\n"));
        assert!(self.accesses_checked > 0, "no access was checked, so nothing was shown");
    }

    /// A report that a process left, by `CUSIM_REPORT`.
    pub fn read(text: &str) -> Report {
        let mut report = Report::default();
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (number, tail) = rest.split_once(' ').unwrap_or((rest, ""));
            let count = number.parse::<u64>().unwrap_or(0);
            let counted = || if count > 1 { format!("{tail} ({count} times)") } else { tail.to_owned() };
            match kind {
                "checked" => report.accesses_checked = count,
                "race" => report.races.push(counted()),
                "host" => report.host_races.push(counted()),
                "misuse" => report.misuse.push(counted()),
                "leak" => report.leaks.push(rest.into()),
                "unknown" => report.unknown.push(rest.into()),
                "call" => drop(report.calls.insert(tail.into(), count)),
                "caller" => drop(report.callers.entry(number.into()).or_default().insert(tail.into())),
                "live" => drop(report.live.insert(tail.into(), count)),
                _ => {}
            }
        }
        report
    }
}

impl Sim {
    /// The simulated driver, if it is what cudarc finds (or has found) in this process. `None`: a real driver,
    /// or none.
    pub fn attach() -> Option<Sim> {
        let library = names().into_iter().find_map(|name| {
            let name = CString::new(name).ok()?;
            // SAFETY: opening a driver library runs its initialisers, as cudarc does with the same name.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            (!library.is_null()).then_some(library)
        })?;
        // SAFETY: the library stays open, so the functions stay where they are; cusim's have these types.
        unsafe {
            let find = |name: &CStr| Some(libc::dlsym(library, name.as_ptr())).filter(|p| !p.is_null());
            let command = std::mem::transmute::<*mut c_void, Command>(find(c"cusim_command")?);
            let free = std::mem::transmute::<*mut c_void, Free>(find(c"cusim_free")?);
            Some(Sim { command, free })
        }
    }

    #[track_caller]
    fn command(&self, command: &str) -> String {
        let text = CString::new(command).expect("a command without NUL");
        // SAFETY: a string that ends in NUL goes in; the answer is a string that is freed once.
        let answer = unsafe {
            let answer = (self.command)(text.as_ptr());
            let copy = CStr::from_ptr(answer).to_string_lossy().into_owned();
            (self.free)(answer);
            copy
        };
        if let Some(reason) = answer.strip_prefix("error ") {
            panic!("{command:?}: {reason}");
        }
        answer
    }

    /// Sets the whole machine. The devices are counted when cuInit is called first, or first after `reset`.
    pub fn configure(&self, config: &Config) {
        self.command(&format!("configure {}", config.to_text()));
    }

    pub fn config(&self) -> Config {
        let mut config = Config::default();
        config.apply(&self.command("config")).expect("the driver's own configuration");
        config
    }

    /// Changes some settings and leaves the others.
    pub fn change(&self, change: impl FnOnce(&mut Config)) {
        let mut config = self.config();
        change(&mut config);
        self.configure(&config);
    }

    /// Changes device `number` of the machine and leaves the others: its link, delays, memory, limit of page-locked
    /// memory.
    pub fn change_device(&self, number: usize, change: impl FnOnce(&mut Config)) {
        let mut config = Config::default();
        config.apply(&self.command(&format!("device {number}"))).expect("the driver's own configuration");
        change(&mut config);
        self.command(&format!("configure_device {number}\n{}", config.to_text()));
    }

    /// What was seen since the last `take`.
    pub fn report(&self) -> Report {
        Report::read(&self.command("report"))
    }

    /// The same; the next report begins anew. Live objects stay.
    pub fn take(&self) -> Report {
        Report::read(&self.command("report take"))
    }

    /// Calls of this process since it was forked from the driver's. The only question that a child may ask.
    pub fn calls_in_child(&self) -> u64 {
        self.command("strays").parse().expect("a number")
    }

    pub fn fail(&self, fault: Fault) {
        self.command(&format!("fail {}", fault.to_text()));
    }

    /// Takes back all faults that have not struck. A context that has failed stays so.
    pub fn heal(&self) {
        self.command("heal");
    }

    /// From now on every call in a context of `device` (its number in the machine) returns `error`.
    pub fn poison(&self, device: usize, error: i32) {
        self.command(&format!("poison {device} {error}"));
    }

    /// The same, and the device can't be opened again.
    pub fn lose(&self, device: usize, error: i32) {
        self.command(&format!("lose {device} {error}"));
    }

    /// From now on every call returns CUDA_ERROR_DEINITIALIZED, as while a process ends.
    pub fn shut_down(&self) {
        self.command("shut_down");
    }

    /// Tells the race detector that the host reads (or writes) `bytes` bytes at `p`, which lie in memory of the
    /// driver's.
    #[track_caller]
    pub fn touch<T>(&self, p: *const T, bytes: usize, write: bool) {
        self.command(&format!("touch {} {bytes} {}", p as usize, u8::from(write)));
    }

    /// Ends all contexts and forgets everything, the configuration included: as if the process began. No other
    /// thread may use the driver meanwhile, and nothing made before may be used after.
    pub fn reset(&self) {
        self.command("reset");
    }
}

/// The names that cudarc tries, in its order (`get_lib_name_candidates`, for CUDA 12.0).
fn names() -> Vec<String> {
    let mut names = vec![];
    for lib in ["libcuda", "libnvcuda"] {
        names.push(format!("{lib}.so"));
        names.extend(
            ["", "_12", "_120", "_120_0", "_120_0", "_10", "_11", "_12", "_120_0", "_9"]
                .map(|version| format!("{lib}64{version}.so")),
        );
        names.extend(["12", "12", "11", "10", "9", "1"].map(|version| format!("{lib}.so.{version}")));
    }
    names
}
