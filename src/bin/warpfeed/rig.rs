//! The device that a run is made on, and what computes there.

use std::str::FromStr;
use std::time::Duration;

use warpfeed::{CpuOptions, Device, Result, Stream};

#[cfg(feature = "cuda")]
use crate::kernel::Kernels;
use crate::pace::paced;

/// A device as it is asked for: `auto`, `cpu`, or `cuda:N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Auto,
    Cpu,
    Cuda(u32),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let cuda = || text.strip_prefix("cuda:")?.parse().ok();
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            _ => cuda().map(Self::Cuda).ok_or_else(|| "expected auto, cpu, or cuda:N".to_string()),
        }
    }
}

/// A device with what computes on it.
pub(crate) struct Rig {
    device: Device,
    #[cfg(feature = "cuda")]
    kernels: Option<Kernels>,
}

impl Rig {
    /// # Errors
    /// A device that there is not, or whose driver does not take the kernels.
    pub(crate) fn open(target: Target) -> anyhow::Result<Self> {
        let device = match target {
            Target::Auto => Device::auto()?,
            Target::Cpu => Device::cpu(),
            Target::Cuda(n) => cuda(n)?,
        };
        Ok(Self {
            #[cfg(feature = "cuda")]
            kernels: Kernels::load(&device)?,
            device,
        })
    }

    pub(crate) fn is_cpu(&self) -> bool {
        self.device.is_cpu()
    }

    /// For people, and in JSON.
    pub(crate) fn name(&self) -> String {
        if self.is_cpu() { "cpu".to_string() } else { self.device.name() }
    }

    /// The device. A CPU device is a new one, whose link has that speed in 10⁹ bytes a second; a GPU's link has its own.
    pub(crate) fn device(&self, link_gbps: Option<f64>) -> Device {
        if !self.is_cpu() {
            return self.device.clone();
        }
        let options = CpuOptions::default();
        Device::cpu_with(match link_gbps {
            Some(gbps) => options.link_gbps(gbps),
            None => options,
        })
    }

    /// The kernels; `None` on the CPU device.
    #[cfg(feature = "cuda")]
    pub(crate) fn kernels(&self) -> Option<&Kernels> {
        self.kernels.as_ref()
    }

    /// Enqueues a computation of `time` on `stream`: a kernel; on the CPU device a wait, which uses the processor where
    /// `spin` is set.
    ///
    /// # Errors
    /// What the stream met.
    pub(crate) fn compute(&self, stream: &Stream, time: Duration, spin: bool) -> Result<()> {
        if time.is_zero() {
            return Ok(());
        }
        #[cfg(feature = "cuda")]
        if let Some(kernels) = &self.kernels {
            return kernels.spin(stream, time);
        }
        stream.enqueue(move || paced(time, spin, || ()))
    }
}

#[cfg(feature = "cuda")]
fn cuda(n: u32) -> anyhow::Result<Device> {
    Device::cuda(n as usize).map_err(|e| anyhow::anyhow!("cannot use cuda:{n}: {e}"))
}

#[cfg(not(feature = "cuda"))]
fn cuda(n: u32) -> anyhow::Result<Device> {
    anyhow::bail!("cannot use cuda:{n}: no CUDA support in this build; use --device cpu")
}
