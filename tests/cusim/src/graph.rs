//! Graphs that were captured. A launch gives the nodes one by one to the launching stream, in the order in which
//! they were captured, which keeps their dependencies: branches do not overlap, and the race detector sees each
//! node as work of that stream. Whether branches race with each other is found when the graph is instantiated.

use crate::error::{Code, Result};
use crate::fence::Fence;
use crate::memory::Found;
use crate::state::{self, State};
use crate::stream::Work;
use crate::work::Action;
use std::collections::BTreeSet;
use std::sync::Arc;

pub enum Task {
    Work(Work),
    /// An external wait for an event: for its latest record at the launch.
    Wait(usize),
    /// An external record.
    Record(usize),
}

pub struct Node {
    pub handle: usize,
    pub task: Task,
    /// Nodes that it depends on, by their place in the graph.
    pub after: BTreeSet<usize>,
}

impl Node {
    /// `CUgraphNodeType`.
    pub fn sort(&self) -> i32 {
        match &self.task {
            Task::Wait(_) => 6,
            Task::Record(_) => 7,
            Task::Work(work) => match work.action {
                Action::Kernel(_) => 0,
                Action::Copy(_) => 1,
                Action::Fill(_) => 2,
                Action::Host(..) => 3,
                Action::Nothing | Action::Release(_) => 5,
            },
        }
    }
}

pub struct Graph {
    pub context: usize,
    pub nodes: Arc<[Node]>,
}

pub struct Exec {
    pub context: usize,
    nodes: Arc<[Node]>,
    /// The end of its last launch: launches of one graph follow each other.
    last: Option<Arc<Fence>>,
}

impl Graph {
    /// These nodes and all that come before them.
    pub fn before(&self, nodes: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut open: Vec<usize> = nodes.iter().copied().collect();
        while let Some(node) = open.pop() {
            if found.insert(node) {
                open.extend(&self.nodes[node].after);
            }
        }
        found
    }

    /// Pairs of nodes that touch the same memory and that no dependency puts in order.
    fn races(&self) -> Vec<(&Work, &Work, u64, String)> {
        let mut found = vec![];
        for (late, node) in self.nodes.iter().enumerate() {
            let before = self.before(&node.after);
            let unordered = (0..late).filter(|early| !before.contains(early));
            for early in unordered {
                let (Task::Work(a), Task::Work(b)) = (&self.nodes[early].task, &node.task) else { continue };
                for x in &a.touches {
                    let meets = b.touches.iter().find(|y| x.conflicts(y));
                    if meets.is_some() {
                        let text = format!(
                            "RACE on {}: inside a graph, nothing orders {}{} (node {late}) after {}{} (node {early})",
                            x.named, b.call, b.detail, a.call, a.detail
                        );
                        found.push((a, b, x.object, text));
                    }
                }
            }
        }
        found
    }
}

pub fn instantiate(graph: usize, flags: u64) -> Result<usize> {
    const AUTO_FREE: u64 = 1;
    const DEVICE_LAUNCH: u64 = 4;
    if flags & !15 != 0 || flags & (AUTO_FREE | DEVICE_LAUNCH) == AUTO_FREE | DEVICE_LAUNCH {
        return Err(Code::INVALID_VALUE);
    }
    let mut state = state::lock();
    let state = &mut *state;
    let graph = state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?;
    for (first, second, object, text) in graph.races() {
        state.detector.races.add(first.call, second.call, object, || text);
    }
    let exec = Exec { context: graph.context, nodes: graph.nodes.clone(), last: None };
    let handle = state.new_handle();
    state.execs.insert(handle, exec);
    Ok(handle)
}

pub fn launch(handle: usize, stream: usize) -> Result {
    let mut state = state::lock();
    let key = state.resolve(stream)?;
    let exec = state.execs.get(&handle).ok_or(Code::INVALID_VALUE)?;
    let owner = state.stream(key)?.context;
    if exec.context != owner {
        return Err(Code::INVALID_HANDLE);
    }
    let (nodes, last) = (exec.nodes.clone(), exec.last.clone());
    state.check_memory(&nodes, owner)?;
    let mut done = None;
    if let Some(last) = last {
        done = state.submit(key, Work::new("cuGraphLaunch", Action::Nothing).after(last))?;
    }
    for node in nodes.iter() {
        match &node.task {
            Task::Work(work) => done = state.submit(key, work.clone().inside_graph())?,
            Task::Wait(event) => state.wait_event(key, *event, false)?,
            Task::Record(event) => state.record_event(key, *event, false)?,
        }
    }
    if let Some(exec) = state.execs.get_mut(&handle) {
        exec.last = done;
    }
    Ok(())
}

impl State {
    /// The memory that the nodes use must be the memory that they were captured with.
    fn check_memory(&mut self, nodes: &[Node], owner: usize) -> Result {
        let works = nodes.iter().filter_map(|node| match &node.task {
            Task::Work(work) => Some(work),
            _ => None,
        });
        for work in works {
            for touch in &work.touches {
                let alive =
                    matches!(self.memory.find(&touch.span), Found::Inside(b) if b.number == touch.object);
                if !alive {
                    let text = format!(
                        "USE AFTER FREE: {} of a graph uses {}, which is gone",
                        work.call, touch.named
                    );
                    self.blame("cuGraphLaunch", touch.object, || text);
                    self.context(owner)?.poison.set(Code::ILLEGAL_ADDRESS);
                    return Err(Code::ILLEGAL_ADDRESS);
                }
            }
        }
        Ok(())
    }
}
