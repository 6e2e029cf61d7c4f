//! Stream capture and graphs.

use super::{put, put_if};
use crate::capture::{self, Mode};
use crate::error::{Code, Result};
use crate::graph::{self, Node};
use crate::state;
use std::ffi::{c_int, c_uint};

api! {
    Context fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) {
        capture::begin(stream, Mode::from_number(mode)?)
    }
    Context fn cuStreamEndCapture(stream: usize, graph: *mut usize) {
        put(graph, 0)?;
        put(graph, capture::end(stream)?)
    }
    Context fn cuStreamIsCapturing(stream: usize, status: *mut c_uint) {
        let mut state = state::lock();
        let key = state.resolve(stream)?;
        put(status, state.capture_status(key)?.0)
    }
    // The graph and the dependencies are not told: there is no graph before the capture ends.
    Context fn cuStreamGetCaptureInfo_v2(
        stream: usize,
        status: *mut c_uint,
        id: *mut u64,
        graph: *mut usize,
        dependencies: *mut *const usize,
        n: *mut usize,
    ) {
        let mut state = state::lock();
        let key = state.resolve(stream)?;
        let (now, number) = state.capture_status(key)?;
        put(status, now)?;
        put_if(id, number as u64);
        put_if(graph, 0);
        put_if(dependencies, std::ptr::null());
        put_if(n, 0);
        Ok(())
    }
    Init fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        // SAFETY: null, or the caller's mode.
        let new = unsafe { mode.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        put(mode, capture::exchange_mode(Mode::from_number(*new)?))
    }
    Context fn cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, flags: u64) {
        put(exec, graph::instantiate(graph, flags)?)
    }
    Context fn cuGraphLaunch(exec: usize, stream: usize) { graph::launch(exec, stream) }
    Context fn cuGraphUpload(exec: usize, stream: usize) {
        let mut state = state::lock();
        state.resolve(stream)?;
        state.execs.get(&exec).map(drop).ok_or(Code::INVALID_VALUE)
    }
    Context fn cuGraphDestroy(graph: usize) {
        state::lock().graphs.remove(&graph).map(drop).ok_or(Code::INVALID_VALUE)
    }
    Context fn cuGraphExecDestroy(exec: usize) {
        state::lock().execs.remove(&exec).map(drop).ok_or(Code::INVALID_VALUE)
    }
    Context fn cuGraphGetNodes(graph: usize, nodes: *mut usize, n: *mut usize) { list(graph, nodes, n, |_| true) }
    Context fn cuGraphGetRootNodes(graph: usize, nodes: *mut usize, n: *mut usize) {
        list(graph, nodes, n, |node| node.after.is_empty())
    }
    Context fn cuGraphNodeGetType(node: usize, sort: *mut c_int) {
        let state = state::lock();
        let mut all = state.graphs.values().flat_map(|graph| graph.nodes.iter());
        put(sort, all.find(|other| other.handle == node).ok_or(Code::INVALID_VALUE)?.sort())
    }
}

/// Writes the nodes that are wanted, or without room for them only how many there are.
fn list(graph: usize, nodes: *mut usize, n: *mut usize, wanted: fn(&Node) -> bool) -> Result {
    let state = state::lock();
    let graph = state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?;
    let found: Vec<usize> = graph.nodes.iter().filter(|node| wanted(node)).map(|node| node.handle).collect();
    // SAFETY: null, or the caller's count.
    let room = *unsafe { n.as_ref() }.ok_or(Code::INVALID_VALUE)?;
    if nodes.is_null() {
        return put(n, found.len());
    }
    let mut all = found.iter().copied().chain(std::iter::repeat(0));
    for i in 0..room {
        // SAFETY: the caller gives room for `n` nodes; those that there are not become null.
        unsafe { nodes.add(i).write(all.next().unwrap_or(0)) };
    }
    put(n, found.len().min(room))
}
