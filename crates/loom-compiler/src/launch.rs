//! The launch program: number of workgroups from workload arguments, evaluated on the host in 64 bits.

use crate::ir::{Body, Parameter};

/// How many workgroups of which size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Workgroups per axis. A zero means no work.
    pub workgroups: [u32; 3],
    /// Work-items per workgroup and axis.
    pub workgroup_size: [u32; 3],
}

/// The specialised launch region of a kernel.
#[derive(Clone, Debug)]
pub struct LaunchProgram {
    /// Workload arguments, one 64-bit slot each.
    pub workload: Vec<Parameter>,
    /// Constant after specialisation.
    pub workgroup_size: [u32; 3],
    /// Pure; its entry block ends in a `Yield` of the three counts.
    pub(crate) body: Body,
}
