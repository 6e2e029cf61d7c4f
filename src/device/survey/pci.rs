//! How a GPU is attached: its PCIe link and its NUMA node, as sysfs shows them.

use super::system::System;

const DEVICES: &str = "sys/bus/pci/devices";
/// The vendor NVIDIA.
const NVIDIA: &str = "0x10de";

/// A PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The generation, 1 to 6.
    pub generation: u32,
    /// The width in lanes: 16 of a full slot.
    pub lanes: u32,
}

impl Link {
    /// The link that sysfs describes as `speed` and `width`. A virtual machine may say "Unknown" and 0 or 255.
    fn parse(speed: &str, width: &str) -> Option<Self> {
        let rate: f64 = speed.split_whitespace().next()?.parse().ok()?;
        let generation = RATES.iter().position(|(r, _)| *r == rate)? + 1;
        let lanes = width.parse().ok().filter(|lanes| (1..=32).contains(lanes))?;
        Some(Self { generation: generation as u32, lanes })
    }

    /// Bytes a second each way, in GB/s (10⁹), by the line rate and its encoding alone. Packets take some 10 % off.
    pub fn gb_per_s(&self) -> f64 {
        let rate = RATES.get((self.generation as usize).wrapping_sub(1));
        rate.map_or(0.0, |(gigabits, share)| gigabits * share / 8.0 * f64::from(self.lanes))
    }
}

/// By generation from 1: 10⁹ transfers a second and lane, and the share of them that the encoding leaves. It is 8 of 10
/// bits, then 128 of 130, then 242 of a 256-byte flit.
const RATES: [(f64, f64); 6] =
    [(2.5, 0.8), (5.0, 0.8), (8.0, ONE_30), (16.0, ONE_30), (32.0, ONE_30), (64.0, 242.0 / 256.0)];
const ONE_30: f64 = 128.0 / 130.0;

/// What sysfs says of one device.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Attachment {
    pub(super) link: Option<Link>,
    pub(super) link_max: Option<Link>,
    pub(super) numa_node: Option<u32>,
    pub(super) numa_cpus: Option<String>,
}

/// How the device at `address` (0000:3b:00.0) is attached.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a driver names devices"))]
pub(super) fn attachment(system: &System, address: &str) -> Attachment {
    let read = |file: &str| system.text(&format!("{DEVICES}/{address}/{file}"));
    let link = |which: &str| {
        Link::parse(&read(&format!("{which}_link_speed"))?, &read(&format!("{which}_link_width"))?)
    };
    // -1 is no node.
    let numa_node = read("numa_node").and_then(|node| node.parse().ok());
    Attachment {
        link: link("current"),
        link_max: link("max"),
        numa_node,
        numa_cpus: numa_node
            .and_then(|node: u32| system.text(&format!("sys/devices/system/node/node{node}/cpulist")))
            .filter(|list| !list.is_empty()),
    }
}

/// How many GPUs of NVIDIA's are on the bus: display controllers of its, with or without an output.
pub(super) fn nvidia_gpus(system: &System) -> usize {
    let is_gpu = |address: &String| {
        let read = |file: &str| system.text(&format!("{DEVICES}/{address}/{file}")).unwrap_or_default();
        let class = read("class");
        read("vendor") == NVIDIA && (class.starts_with("0x0300") || class.starts_with("0x0302"))
    };
    system.names(DEVICES).iter().filter(|address| is_gpu(address)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_old_and_new_kernels_write_them() {
        let link = |generation, lanes| Some(Link { generation, lanes });
        assert_eq!(Link::parse("16.0 GT/s PCIe", "16"), link(4, 16));
        assert_eq!(Link::parse("8 GT/s", "8"), link(3, 8));
        assert_eq!(Link::parse("2.5 GT/s PCIe", "1"), link(1, 1));
        for (speed, width) in
            [("Unknown", "16"), ("16.0 GT/s PCIe", "0"), ("16.0 GT/s PCIe", "255"), ("", "")]
        {
            assert_eq!(Link::parse(speed, width), None, "{speed} {width}");
        }
    }

    #[test]
    fn a_link_is_as_fast_as_its_specification_says() {
        // GB/s of sixteen lanes, to two digits behind the point.
        let known = [4.0, 8.0, 15.75, 31.51, 63.02, 121.0];
        for (i, known) in known.into_iter().enumerate() {
            let found = Link { generation: i as u32 + 1, lanes: 16 }.gb_per_s();
            assert!((found - known).abs() < 0.01, "generation {}: {found}", i + 1);
        }
        assert_eq!(Link { generation: 0, lanes: 16 }.gb_per_s(), 0.0);
    }
}
