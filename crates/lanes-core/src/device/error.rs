//! Device errors: few, each for somebody's reaction.

use std::sync::Arc;

/// What a device can report that the caller could not have ruled out beforehand.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device, its driver or this build cannot do it at all. Choose another device or feature.
    #[error("unsupported: {what}")]
    Unsupported {
        /// What was asked, and what is missing for it.
        what: String,
    },
    /// The request is wrong whatever the device. Correct it.
    #[error("invalid: {what}")]
    Invalid {
        /// What was found, where, and what would be accepted.
        what: String,
    },
    /// One thing is larger than the device ever takes. Split it.
    #[error("{what} is {bytes} bytes, and the device takes at most {limit}")]
    TooLarge {
        /// What was asked for.
        what: String,
        /// Its size.
        bytes: u64,
        /// The device's limit.
        limit: u64,
    },
    /// The budget that the user set would be passed. Nothing was allocated.
    #[error("over budget: {what} needs {need} bytes, {used} of {budget} are in use")]
    OverBudget {
        /// What was asked for.
        what: String,
        /// Bytes asked.
        need: u64,
        /// Bytes already charged.
        used: u64,
        /// The budget.
        budget: u64,
    },
    /// The device has no memory left. The same call can succeed after a buffer is dropped.
    #[error("out of device memory: {what}{}", if *asked > 0 { format!(" asked for {asked} bytes") } else { String::new() })]
    OutOfMemory {
        /// What was asked for.
        what: String,
        /// Bytes asked; 0 where only the driver knows how many.
        asked: u64,
    },
    /// Every slot or place is taken. Nothing was queued; call again later.
    #[error("busy: {depth} in flight")]
    Busy {
        /// Submissions in flight.
        depth: usize,
    },
    /// A kernel did not build. The device is as healthy as before.
    #[error("kernel {kernel} did not build: {log}")]
    Build {
        /// The kernel's export name.
        kernel: String,
        /// What the compiler or driver said.
        log: String,
    },
    /// A run failed and was contained: what it wrote is undefined, nothing else is touched.
    #[error("fault in {at}: {what}")]
    Fault {
        /// The command or kernel.
        at: String,
        /// What happened.
        what: String,
    },
    /// The device is gone, and all its buffers. Open it again and upload the weights.
    #[error("device lost: {0}")]
    Lost(Arc<str>),
    /// The submission was cancelled before it ran.
    #[error("cancelled")]
    Cancelled,
    /// What this needed failed first.
    #[error("an earlier submission failed: {0}")]
    Upstream(#[source] Arc<DeviceError>),
}

impl DeviceError {
    /// For backends: something longer than this machine can address.
    pub fn unaddressable(what: String, bytes: u64) -> Self {
        Self::TooLarge { what, bytes, limit: isize::MAX as u64 }
    }

    /// Whether something failed that was not asked for in vain: what another request, or another device, would not have met.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Build { .. } | Self::Fault { .. } | Self::Lost(_) | Self::Cancelled | Self::Upstream(_) => true,
            Self::Unsupported { .. } | Self::Invalid { .. } | Self::TooLarge { .. } => false,
            Self::OverBudget { .. } | Self::OutOfMemory { .. } | Self::Busy { .. } => false,
        }
    }

    /// What a submission ends with that came after one which ended with `self`. The first cause is kept, however long
    /// the chain.
    pub fn upstream(self) -> Self {
        match self {
            Self::Upstream(cause) => Self::Upstream(cause),
            cause => Self::Upstream(Arc::new(cause)),
        }
    }
}
