//! Images of registries: names, pulling, and the files on this machine.

mod digest;
#[cfg(target_os = "linux")]
mod layer;
mod manifest;
mod reference;
mod registry;
#[cfg(target_os = "linux")]
mod store;

use std::sync::Arc;

#[cfg(target_os = "linux")]
pub(crate) use store::ImageStore;

pub use reference::ImageReference;
pub use registry::{RegistryBody, RegistryLogin, RegistryReply, RegistryTransport, TransportError};

/// An image and the credentials of who asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRequest {
    pub name: String,
    /// Without it, only images that anyone may pull are found.
    pub login: Option<RegistryLogin>,
}

impl ImageRequest {
    /// An image that anyone may pull.
    #[must_use]
    pub fn anonymous(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            login: None,
        }
    }
}

/// Where images come from, and how much of them a machine keeps.
#[derive(Clone, Debug)]
pub struct ImageSettings {
    /// Without it, images of registries are refused.
    pub transport: Option<Arc<dyn RegistryTransport>>,
    /// The files of one image.
    pub max_image_bytes: u64,
    /// All images.
    pub max_total_bytes: u64,
}

impl Default for ImageSettings {
    fn default() -> Self {
        Self {
            transport: None,
            max_image_bytes: 8 << 30,
            max_total_bytes: 50 << 30,
        }
    }
}
