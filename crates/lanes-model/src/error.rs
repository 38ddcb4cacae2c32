//! What can be wrong with a model or with what was asked of it.

use crate::model::MixesLanes;
use std::path::PathBuf;

/// Why a model was not imported. Each variant is for another reaction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file, or the data it refers to, cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is no ONNX model, or a damaged one.
    #[error("{what}")]
    Malformed {
        /// What was found, and where.
        what: String,
    },
    /// A sound model that uses something this importer does not do.
    #[error("node {node} ({op}) is not supported: {why}")]
    Unsupported {
        /// The node's name.
        node: String,
        /// Its operator.
        op: String,
        /// What was found, and what is supported.
        why: String,
    },
    /// An option names or says something that does not fit the model, or one is missing.
    #[error("{what}")]
    Option {
        /// Which input and option, what was found, what would be accepted.
        what: String,
    },
    /// The states cannot be paired.
    #[error("{what}")]
    States {
        /// Which input, which candidates.
        what: String,
    },
    /// It mixes lanes by name: no lane's answer would be its own.
    #[error(transparent)]
    MixesLanes(#[from] MixesLanes),
}

impl ModelError {
    pub(crate) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed { what: what.into() }
    }

    pub(crate) fn option(what: impl Into<String>) -> Self {
        Self::Option { what: what.into() }
    }
}
