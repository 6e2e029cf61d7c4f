//! Memory near the GPU: on the node of its PCIe root.

use std::path::Path;

/// The NUMA node of a PCI device (`0000:65:00.0`), where there is more than one node and the system tells which.
pub(super) fn node_of(sys: &Path, bus: &str) -> Option<usize> {
    let text = std::fs::read_to_string(sys.join("bus/pci/devices").join(bus).join("numa_node")).ok()?;
    let node = text.trim().parse::<i64>().ok().and_then(|n| usize::try_from(n).ok())?;
    // With one node there is nothing to choose.
    sys.join("devices/system/node/node1").exists().then_some(node)
}

/// Runs `work`, which allocates memory and touches it first, on a thread whose memory comes from `node`. Where the
/// system refuses that (a container may), it runs all the same.
pub(super) fn on_node<T: Send>(node: Option<usize>, work: impl FnOnce() -> T + Send) -> T {
    let Some(node) = node else { return work() };
    let mut work = Some(work);
    let result = std::thread::scope(|scope| {
        let work = &mut work;
        let body = move || {
            prefer(node);
            work.take().map(|work| work())
        };
        let thread = std::thread::Builder::new().name("warpfeed-numa".to_string());
        thread.spawn_scoped(scope, body).ok().map(std::thread::ScopedJoinHandle::join)
    });
    match (result, work) {
        (Some(Ok(Some(done))), _) => done,
        (Some(Err(panic)), _) => std::panic::resume_unwind(panic),
        // No thread could be made, so that `work` is still here.
        (_, Some(work)) => work(),
        (_, None) => unreachable!("the work is gone only where its thread returned"),
    }
}

/// Has the calling thread's memory come from `node` first: set_mempolicy(2), MPOL_PREFERRED.
fn prefer(node: usize) {
    #[cfg(target_os = "linux")]
    {
        const MPOL_PREFERRED: libc::c_long = 1;
        const BITS: usize = 1024;
        let mut mask = [0u64; BITS / 64];
        if node >= BITS {
            return;
        }
        mask[node / 64] |= 1 << (node % 64);
        // SAFETY: the mask holds as many bits as said and lives across the call, which changes this thread alone.
        let refused =
            unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_PREFERRED, mask.as_ptr(), BITS) } != 0;
        if refused {
            let error = std::io::Error::last_os_error();
            tracing::debug!("host slots may lie far from the GPU: set_mempolicy for node {node}: {error}");
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = node;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_read_where_there_is_a_choice() {
        let sys = tempfile::tempdir().unwrap();
        let pci = sys.path().join("bus/pci/devices/0000:65:00.0");
        std::fs::create_dir_all(&pci).unwrap();
        assert_eq!(node_of(sys.path(), "0000:65:00.0"), None);
        std::fs::write(pci.join("numa_node"), "1\n").unwrap();
        assert_eq!(node_of(sys.path(), "0000:65:00.0"), None, "one node: nothing to choose");
        std::fs::create_dir_all(sys.path().join("devices/system/node/node1")).unwrap();
        assert_eq!(node_of(sys.path(), "0000:65:00.0"), Some(1));
        assert_eq!(node_of(sys.path(), "0000:66:00.0"), None);
        std::fs::write(pci.join("numa_node"), "-1\n").unwrap();
        assert_eq!(node_of(sys.path(), "0000:65:00.0"), None, "the firmware does not say");
    }

    #[test]
    fn the_work_runs_once_whatever_the_node() {
        for node in [None, Some(0), Some(1023), Some(100_000)] {
            let mut ran = 0;
            assert_eq!(on_node(node, || std::mem::replace(&mut ran, 1)), 0);
            assert_eq!(ran, 1);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_policy_ends_with_the_thread() {
        let policy = || {
            let mut mode: libc::c_int = -1;
            // SAFETY: a place for the mode; no mask is asked for.
            let rc = unsafe {
                libc::syscall(libc::SYS_get_mempolicy, &mut mode, std::ptr::null_mut::<u64>(), 0, 0, 0)
            };
            (rc == 0).then_some(mode)
        };
        let before = policy();
        let inside = on_node(Some(0), policy);
        assert_eq!(policy(), before);
        if let Some(inside) = inside {
            assert!(inside == 1 || Some(inside) == before, "MPOL_PREFERRED, or refused: {inside}");
        }
    }
}
