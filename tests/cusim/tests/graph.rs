//! Graphs under the race detector: launches as work of their stream, branches against each other, memory that is
//! gone.

mod support;

use cudarc::driver::{CudaContext, CudaGraph, CudaStream, result, sys};
use std::sync::Arc;
use support::{Locked, sim};
use sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL as GLOBAL;

const N: usize = 4096;

struct Rig {
    context: Arc<CudaContext>,
    a: Arc<CudaStream>,
    b: Arc<CudaStream>,
    host: *mut u8,
    device: sys::CUdeviceptr,
    sim: Locked, // last: the next test begins when it is dropped
}

fn rig() -> Rig {
    let sim = sim();
    let context = CudaContext::new(0).unwrap();
    // SAFETY: the rig orders its streams itself, or fails to on purpose. The memory is used within `N`.
    unsafe {
        context.disable_event_tracking();
        let host = result::malloc_host(N, 0).unwrap().cast();
        let device = result::malloc_sync(N).unwrap();
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        Rig { context, a, b, host, device, sim }
    }
}

impl Rig {
    fn upload(&self, stream: &CudaStream) {
        // SAFETY: inside both buffers.
        unsafe { sys::cuMemcpyHtoDAsync_v2(self.device, self.host.cast(), N, stream.cu_stream()) }
            .result()
            .unwrap();
    }

    fn fill(&self, stream: &CudaStream, from: usize, n: usize) {
        // SAFETY: inside the buffer.
        unsafe { result::memset_d8_async(self.device + from as u64, 1, n, stream.cu_stream()) }.unwrap();
    }

    fn end(&self) -> CudaGraph {
        self.a.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap()
    }

    /// Two branches that fill these parts of the device memory.
    fn branches(&self, first: (usize, usize), second: (usize, usize)) -> CudaGraph {
        self.a.begin_capture(GLOBAL).unwrap();
        self.b.join(&self.a).unwrap();
        self.fill(&self.a, first.0, first.1);
        self.fill(&self.b, second.0, second.1);
        self.a.join(&self.b).unwrap();
        self.end()
    }
}

#[test]
fn capturing_is_no_access_and_each_launch_is() {
    let rig = rig();
    rig.a.begin_capture(GLOBAL).unwrap();
    rig.upload(&rig.a);
    rig.fill(&rig.a, 0, N);
    let graph = rig.end();
    assert_eq!(rig.sim.report().accesses_checked, 0);
    graph.launch().unwrap();
    graph.launch().unwrap();
    rig.context.synchronize().unwrap();
    let report = rig.sim.report();
    assert_eq!(report.accesses_checked, 6);
    report.assert_clean();
}

#[test]
fn a_launch_that_nothing_orders_is_a_race() {
    for waits in [true, false] {
        let rig = rig();
        rig.a.begin_capture(GLOBAL).unwrap();
        rig.upload(&rig.a);
        let graph = rig.end();
        rig.fill(&rig.b, 0, N);
        if waits {
            rig.a.join(&rig.b).unwrap();
        }
        graph.launch().unwrap();
        rig.context.synchronize().unwrap();
        let races = rig.sim.report().races;
        assert_eq!(races.len(), usize::from(!waits), "{races:?}");
        assert!(waits || races[0].contains("cuMemcpyHtoDAsync 4096 B in a graph"), "{races:?}");
    }
}

#[test]
fn branches_that_touch_the_same_bytes_race() {
    let rig = rig();
    drop(rig.branches((0, 100), (100, 100)));
    assert!(rig.sim.report().races.is_empty());
    drop(rig.branches((0, 101), (100, 100)));
    let races = rig.sim.report().races;
    assert!(races.len() == 1 && races[0].contains("inside a graph"), "{races:?}");
}

#[test]
fn a_graph_that_outlives_its_memory_breaks_the_context() {
    let rig = rig();
    rig.a.begin_capture(GLOBAL).unwrap();
    rig.fill(&rig.a, 0, N);
    let graph = rig.end();
    // SAFETY: freed once; before the launch, which is the mistake.
    unsafe { result::free_sync(rig.device) }.unwrap();
    assert_eq!(graph.launch().unwrap_err().0, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(rig.sim.report().misuse[0].starts_with("USE AFTER FREE"));
}

#[test]
fn an_external_wait_is_for_the_latest_record_at_the_launch() {
    let rig = rig();
    let event = rig.context.new_event(None).unwrap();
    rig.a.begin_capture(GLOBAL).unwrap();
    let external = sys::CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL;
    // SAFETY: live handles.
    unsafe { result::stream::wait_event(rig.a.cu_stream(), event.cu_event(), external) }.unwrap();
    rig.fill(&rig.a, 0, N);
    let graph = rig.end();
    for _ in 0..2 {
        rig.upload(&rig.b);
        event.record(&rig.b).unwrap();
        graph.launch().unwrap();
        rig.b.join(&rig.a).unwrap();
    }
    rig.context.synchronize().unwrap();
    rig.sim.report().assert_clean();
    rig.upload(&rig.b); // and the record is missing
    graph.launch().unwrap();
    rig.context.synchronize().unwrap();
    assert_eq!(rig.sim.report().races.len(), 1);
}

#[test]
fn the_legacy_stream_is_refused_while_a_blocking_stream_is_captured() {
    let rig = rig();
    let blocking = result::stream::create(result::stream::StreamKind::Default).unwrap();
    // SAFETY: live handles; inside the buffer.
    unsafe {
        result::stream::begin_capture(blocking, GLOBAL).unwrap();
        // To ask is not to be in the way.
        let asked = result::stream::is_capturing(std::ptr::null_mut()).unwrap_err();
        assert_eq!(asked.0, sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        let active = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        assert_eq!(result::stream::is_capturing(blocking).unwrap(), active);
        let code = sys::cuMemsetD8Async(rig.device, 0, 1, std::ptr::null_mut());
        assert_eq!(code, sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        assert!(result::stream::end_capture(blocking).is_err());
        result::stream::destroy(blocking).unwrap();
    }
}

#[test]
fn a_capture_has_a_status_and_a_number() {
    let rig = rig();
    let info = |stream: &CudaStream| {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut id = 0;
        use std::ptr::null_mut;
        // SAFETY: a live stream; the driver writes to this stack, and not where it gets null.
        unsafe {
            sys::cuStreamGetCaptureInfo_v2(
                stream.cu_stream(),
                &mut status,
                &mut id,
                null_mut(),
                null_mut(),
                null_mut(),
            )
        }
        .result()
        .unwrap();
        (status as u32, id)
    };
    assert_eq!(info(&rig.a), (0, 0));
    rig.a.begin_capture(GLOBAL).unwrap();
    rig.b.join(&rig.a).unwrap();
    let (active, id) = info(&rig.a);
    assert!(active == 1 && id != 0 && info(&rig.b) == (1, id));
    assert!(rig.a.synchronize().is_err());
    assert_eq!(info(&rig.b), (2, id));
    assert!(rig.a.end_capture(sys::CUgraphInstantiate_flags(0)).is_err());
    assert_eq!((info(&rig.a), info(&rig.b)), ((0, 0), (0, 0)));
}

#[test]
fn graphs_are_counted_while_they_live() {
    let rig = rig();
    rig.a.begin_capture(GLOBAL).unwrap();
    let graph = rig.end();
    assert_eq!(rig.sim.report().live_of("graphs"), 2); // the graph, and what can be launched
    drop(graph);
    assert_eq!(rig.sim.report().live_of("graphs"), 0);
}
