//! Isolated machines ("boxes") for the commands of agents.
//!
//! Promises: a box sees no file, process or network of the host, and reaches hosts through its proxy alone; its commands
//! outlive the process that started them; what a box leaves on the machine carries its id and generation, and a driver
//! refuses an older generation than it has seen; a limit that the machine cannot enforce is refused, never ignored.
//! Leaves to others: rows, when to start and stop, which addresses may be called, and permissions.
//!
//! ```text
//! <root>/
//!   base/<digest>/                     the read-only root made from the host
//!   layers/<layer>/                    sealed files of a box, read-only
//!   images/<digest>/                   an image of a registry, by its name and the owner of its files
//!     root/                            its files, read-only
//!     image.json                       its name and configuration
//!     used                             the time of this file is that of the last use
//!   boxes/<box>/generation             the newest generation that was started or destroyed
//!   boxes/<box>/upper, work            files of the box; they outlive a stop
//!   volumes/<volume>.img               an ext4 file system; a folder where the platform is not root
//!   runs/<box>.<generation>/           one life of a box
//!     launch.json                      what the launcher is to make
//!     agent.sock                       socket of the agent
//!     record.json                      process id and start time of the agent; written last
//!     authority.key                    key of the authority that the box trusts; not visible in the box
//!     authority.pem, bundle.pem        its certificate, alone and behind those that the host trusts
//!     root/                            where the launcher assembles the root; empty outside of the box
//! ```
//!
//! A [`Driver`] starts and stops boxes. [`BoxAgent`] talks to the agent in a box: commands, files, ports. A
//! [`BoxProxy`] is the only way from a box to a network.

pub mod client;
pub mod driver;
pub mod error;
pub mod exec;
pub mod file;
pub mod proxy;
pub mod spec;
mod wire;

// Names and settings are known everywhere.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux pulls images"))]
pub mod image;

#[cfg(target_os = "linux")]
mod agent;
#[cfg(target_os = "linux")]
mod descriptor;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
pub mod namespace;
#[cfg(target_os = "linux")]
pub mod program;
#[cfg(target_os = "linux")]
mod tree;

pub use client::{AgentDialer, BoxAgent, Download, ExecEvents, ExecInput, Execution, PortConnection};
pub use driver::{BoxHandle, BoxState, Capabilities, Driver, Isolation};
pub use error::{Error, Result};
pub use exec::{CommandStatus, ExecEvent, ExecRequest, OutputTail, PtySize};
pub use file::{ByteRange, Entry, FileStat, GlobRequest, GrepMatch, GrepRequest, Page};
pub use image::{ImageReference, ImageRequest, ImageSettings};
#[cfg(target_os = "linux")]
pub use namespace::{NamespaceDriver, NamespaceSettings};
pub use proxy::{BoxProxy, CertificateAuthority, ProxyEndpoint, ProxySettings, Traffic};
pub use spec::{BoxSpec, Generation, Layer, Limits, RootFileSystem, VolumeMount, VolumeSource};
