//! Many stateful streams through one resident model, on any accelerator.
#![deny(unsafe_code)]
