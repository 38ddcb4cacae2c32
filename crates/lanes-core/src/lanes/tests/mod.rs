//! The lanes against plain models of them, with a model that shows every wrong row, order and seat.

mod churn;
mod double;
mod forks;
mod forming;
mod pipelining;
mod reaping;
mod slotted;
mod streams;
