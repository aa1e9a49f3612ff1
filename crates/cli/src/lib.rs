//! The `forebay` command: everything between a user's words and a pool.
//!
//! What enters: command lines, requests on control sockets, signals, NBD clients.
//! What leaves: tables, JSON, exit codes; calls of the pool room.
//! What always holds: a command does the same whether a server has the pool or not (one set of
//! pools does the work in both cases); bad input is one line on standard error that says what to
//! do, exit code 1 (2 for wrong usage), and nothing has changed; nothing listens beyond this
//! machine unless it was asked to.
//! Who calls me: the user's shell; nobody depends on this crate.
//!
//! [`args`] is the one command table; [`commands`] does what it says; [`render`] prints.

pub mod args;
pub mod commands;
pub mod control;
pub mod devices;
mod escape;
pub mod failure;
pub mod leases;
pub mod members;
mod memory;
pub mod pool_access;
pub mod pools;
pub mod render;
pub mod run;
pub mod serving;
pub mod signals;
pub mod state;
pub mod state_writer;
pub mod terminal;
pub mod vdevs;
