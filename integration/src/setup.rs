//! A corner with a mock containerd, and shims in it: what a test of Rampart's own
//! promises needs that drives the shim directly.

use serde_json::Value;

use crate::bundle;
use crate::host::Host;
use crate::mock::MockContainerd;
use crate::shim::{Input, Reply, Shim, TaskClient};

/// What such a test stands on.
#[derive(Debug)]
pub struct Setup {
    /// Receives the shims' events.
    pub mock: MockContainerd,
    /// Where the shims run.
    pub host: Host,
}

impl Setup {
    /// Sets it up, or skips the test where that cannot be done.
    pub fn new() -> Option<Self> {
        let (host, mock) = MockContainerd::for_rampart("these are Rampart's own promises")?;
        Some(Self { mock, host })
    }

    /// A shim that is not started yet, with the bundle of a container that will run
    /// `program`.
    pub fn shim(&self, id: &str, program: &[&str]) -> Shim<'_> {
        self.shim_with(id, program, &[])
    }

    /// As [`Self::shim`], with more members of the spec.
    pub fn shim_with(&self, id: &str, program: &[&str], more: &[(&str, Value)]) -> Shim<'_> {
        bundle::make(&self.host, self.host.name(), id, program, more);
        Shim::new(&self.host, &self.mock, id)
    }

    /// A started shim with a container that is created.
    #[track_caller]
    pub fn created(&self, id: &str, program: &[&str]) -> (Shim<'_>, TaskClient, Reply) {
        let shim = self.shim(id, program);
        let reply = shim.start(&Input::Bootstrap);
        let mut client = shim.connect(&reply);
        client.create(shim.bundle()).expect("create the task");
        (shim, client, reply)
    }

    /// A started shim with a container that runs.
    #[track_caller]
    pub fn running(&self, id: &str, program: &[&str]) -> (Shim<'_>, TaskClient, Reply) {
        let (shim, mut client, reply) = self.created(id, program);
        client.start("").expect("start the task");
        (shim, client, reply)
    }
}
