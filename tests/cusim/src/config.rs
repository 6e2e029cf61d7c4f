//! What the simulated machine is like. Set by `CUSIM_*` variables at first use, and by tests at any time.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::str::FromStr;
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard};

macro_rules! config {
    ($($(#[$doc:meta])* $field:ident: $ty:ty = $default:expr;)*) => {
        /// The simulated machine. A test changes fields of [`Config::default`] and hands it to `Sim::configure`.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[$doc])* pub $field: $ty,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($field: $default,)* }
            }
        }

        impl Config {
            const KEYS: &[&str] = &[$(stringify!($field)),*];

            /// Sets the field named `key` from text; an error says what is wrong with it.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
                match key {
                    $(stringify!($field) => self.$field = <$ty as Value>::read(value)
                        .ok_or_else(|| format!("cusim: {value:?} is no value for {key}"))?,)*
                    _ => return Err(format!("cusim: no setting is called {key:?}; there are: {}", Self::KEYS.join(", "))),
                }
                Ok(())
            }

            /// All fields, a line `key=value` each.
            pub fn to_text(&self) -> String {
                let mut text = String::new();
                $(let _ = writeln!(text, "{}={}", stringify!($field), self.$field.written());)*
                text
            }
        }
    };
}

config! {
    /// Devices in the machine; `CUDA_VISIBLE_DEVICES` chooses among them.
    devices: usize = 2;
    /// Memory of each device, in bytes.
    memory: usize = 8 << 30;
    /// As cuDriverGetVersion gives it.
    driver_version: i32 = 12000;
    /// Compute capability, 10 × major + minor.
    compute: i32 = 90;
    /// Streaming multiprocessors of a device.
    multiprocessors: i32 = 132;
    /// PCI bus ids, separated by commas; made up where there are none.
    pci: String = String::new();
    /// Whether devices can reach each other's memory.
    peer: bool = true;
    /// Speed of a device's link, each direction, in GB/s; 0: no time passes.
    gbps: f64 = 0.0;
    /// Fixed time of a copy over the link, in µs.
    copy_us: u64 = 0;
    /// Time of a kernel, in µs; more if running it on the host takes longer.
    kernel_us: u64 = 0;
    /// Work is done only when somebody needs it.
    lazy: bool = false;
    /// Work that nobody needs is done after this time all the same, in ms.
    lazy_ms: u64 = 100;
    /// Longest delay before each operation, in µs; how long each one is comes from `seed`.
    delay_us: u64 = 0;
    seed: u64 = 1;
    /// Page-locked memory in flight is protected against the host.
    guard: bool = false;
    /// A copy from pageable memory waits on the host for the work before it.
    pageable_waits: bool = false;
    /// A kernel that is not in the table is not an error: it takes `kernel_us` and is taken to read and write
    /// all memory that its arguments point into.
    unknown_kernels: bool = false;
    /// Most bytes that can be page-locked; 0: no limit.
    pin_limit: usize = 0;
    /// Where the report is left when the process ends; empty: nowhere.
    report: String = String::new();
    /// What cuInit returns; 0: success.
    init_error: i32 = 0;
}

trait Value: Sized {
    fn read(text: &str) -> Option<Self>;
    fn written(&self) -> String;
}

impl Value for bool {
    fn read(text: &str) -> Option<Self> {
        match text {
            "1" | "true" => Some(true),
            "0" | "false" | "" => Some(false),
            _ => None,
        }
    }

    fn written(&self) -> String {
        u8::from(*self).to_string()
    }
}

macro_rules! plain {
    ($($ty:ty)*) => { $(impl Value for $ty {
        fn read(text: &str) -> Option<Self> {
            parse(text)
        }

        fn written(&self) -> String {
            self.to_string()
        }
    })* };
}
plain!(usize u64 i32 f64 String);

fn parse<T: FromStr + Display>(text: &str) -> Option<T> {
    text.parse().ok()
}

impl Config {
    /// The defaults, changed by the environment. A variable that says nothing sensible ends the process: a run
    /// over another machine than was asked for proves nothing.
    pub fn from_environment() -> Config {
        let mut config = Config::default();
        for (name, value) in std::env::vars() {
            let Some(key) = name.strip_prefix("CUSIM_") else { continue };
            if let Err(reason) = config.set(&key.to_lowercase(), &value) {
                panic!("{name}: {reason}");
            }
        }
        config
    }

    /// The fields of `text`, as [`Config::to_text`] writes them, over this.
    pub fn apply(&mut self, text: &str) -> Result<(), String> {
        let mut new = self.clone();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let (key, value) =
                line.split_once('=').ok_or_else(|| format!("cusim: {line:?} is not key=value"))?;
            new.set(key.trim(), value.trim())?;
        }
        *self = new;
        Ok(())
    }
}

static CONFIG: LazyLock<RwLock<Config>> = LazyLock::new(|| RwLock::new(Config::from_environment()));

pub fn read() -> RwLockReadGuard<'static, Config> {
    CONFIG.read().unwrap_or_else(PoisonError::into_inner)
}

static DEVICES: LazyLock<RwLock<BTreeMap<usize, Config>>> = LazyLock::new(RwLock::default);

/// What device `number` of the machine is like: as the machine, or as was said of it alone.
pub fn of(number: usize) -> Config {
    let devices = DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    devices.get(&number).cloned().unwrap_or_else(|| read().clone())
}

/// Sets device `number` apart from the machine.
pub fn set_apart(number: usize, config: Config) {
    DEVICES.write().unwrap_or_else(PoisonError::into_inner).insert(number, config);
}

/// All devices are as the machine again.
pub fn forget_devices() {
    DEVICES.write().unwrap_or_else(PoisonError::into_inner).clear();
}

pub fn replace(config: Config) {
    *CONFIG.write().unwrap_or_else(PoisonError::into_inner) = config;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_holds_all_of_a_configuration() {
        let mut config = Config { gbps: 12.5, guard: true, pci: "0000:17:00.0".into(), ..Config::default() };
        let mut read = Config::default();
        read.apply(&config.to_text()).unwrap();
        assert_eq!(read, config);
        assert!(config.apply("gpbs=3").unwrap_err().contains("no setting"));
        assert!(config.apply("gbps=fast").unwrap_err().contains("no value"));
    }
}
