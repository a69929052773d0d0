//! The documents of an image: index, manifest, configuration. They are untrusted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use crate::error::{Error, Result};

pub(super) const ACCEPTED_TYPES: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";
const MAX_LAYERS: usize = 128;
/// As for the variables of a box.
const MAX_VARIABLES: usize = 1000;
const MAX_VARIABLE_BYTES: usize = 128 << 10;

/// A piece of an image in its repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) digest: Digest,
    pub(super) size: u64,
}

/// A layer and the digest of its archive once it is decompressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LayerBlob {
    pub(super) blob: Blob,
    pub(super) content: Digest,
}

/// What a manifest or an index says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Document {
    /// The digest of the manifest for this machine.
    Index(Digest),
    Image {
        config: Blob,
        layers: Vec<Blob>,
    },
}

#[derive(Deserialize)]
struct DocumentFile {
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

impl Descriptor {
    fn blob(&self) -> Result<Blob> {
        let digest = Digest::parse(&self.digest);
        let digest = digest.ok_or_else(|| malformed("its manifest has something other than a SHA-256 digest"))?;
        Ok(Blob {
            digest,
            size: self.size,
        })
    }
}

impl Document {
    pub(super) fn parse(text: &[u8]) -> Result<Self> {
        let file: DocumentFile =
            serde_json::from_slice(text).map_err(|_| malformed("its manifest is not one of an image"))?;
        match (file.manifests, file.config, file.layers) {
            (Some(manifests), None, None) => select_platform(&manifests).map(Self::Index),
            (None, Some(config), Some(layers)) => {
                if layers.len() > MAX_LAYERS {
                    return Err(Error::Invalid(format!("it has more than {MAX_LAYERS} layers")));
                }
                // Artifacts, such as charts and models, have manifests too.
                if !layers.iter().all(|layer| layer.media_type.contains("tar")) {
                    return Err(malformed("it is an artifact and not an image"));
                }
                Ok(Self::Image {
                    config: config.blob()?,
                    layers: layers.iter().map(Descriptor::blob).collect::<Result<_>>()?,
                })
            }
            _ => Err(malformed("its manifest is not one of an image")),
        }
    }
}

fn select_platform(manifests: &[Descriptor]) -> Result<Digest> {
    let architecture = architecture();
    let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == architecture;
    let found = manifests.iter().find(|entry| entry.platform.as_ref().is_some_and(fits));
    let found = found.ok_or_else(|| Error::Invalid(format!("it has no variant for linux/{architecture}")))?;
    Ok(found.blob()?.digest)
}

/// The architecture of this machine in the words of images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// How commands run in boxes of an image unless a request says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageConfig {
    /// A name or an id. Images without one run as root.
    pub(crate) user: String,
    pub(crate) work_dir: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct ConfigFile {
    os: Option<String>,
    architecture: Option<String>,
    config: Option<RunFields>,
    rootfs: RootFields,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RunFields {
    user: Option<String>,
    working_dir: Option<String>,
    env: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RootFields {
    diff_ids: Vec<String>,
}

/// Reads a configuration. Its layers get the digests of their content, in order.
pub(super) fn parse_config(text: &[u8], layers: Vec<Blob>) -> Result<(ImageConfig, Vec<LayerBlob>)> {
    let file: ConfigFile =
        serde_json::from_slice(text).map_err(|_| malformed("its configuration is not one of an image"))?;
    let is_here = file.os.as_deref().is_none_or(|os| os == "linux")
        && file.architecture.as_deref().is_none_or(|found| found == architecture());
    if !is_here {
        return Err(Error::Invalid(format!("it is not for linux/{}", architecture())));
    }
    if file.rootfs.diff_ids.len() != layers.len() {
        return Err(malformed("its manifest and its configuration have different layers"));
    }
    let contents = file.rootfs.diff_ids.iter().map(|text| Digest::parse(text));
    let layers = layers.into_iter().zip(contents).map(|(blob, content)| {
        let content =
            content.ok_or_else(|| malformed("its configuration has something other than a SHA-256 digest"))?;
        Ok(LayerBlob { blob, content })
    });
    let layers = layers.collect::<Result<_>>()?;
    let run = file.config.unwrap_or_default();
    let env = run.env.unwrap_or_default();
    if env.len() > MAX_VARIABLES || env.iter().map(String::len).sum::<usize>() > MAX_VARIABLE_BYTES {
        return Err(malformed("its environment has more than 1,000 variables or 128 KiB"));
    }
    let variables = env.iter().filter_map(|entry| entry.split_once('='));
    let is_usable = |(name, value): &(&str, &str)| !name.is_empty() && !name.contains('\0') && !value.contains('\0');
    // The group behind the colon is that of the user in the image's table.
    let user = run.user.as_deref().and_then(|user| user.split(':').next());
    let user = user.filter(|user| !user.is_empty()).unwrap_or("root");
    let config = ImageConfig {
        user: user.to_owned(),
        work_dir: run
            .working_dir
            .filter(|folder| folder.starts_with('/') && !folder.contains('\0')),
        env: variables
            .filter(is_usable)
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    };
    Ok((config, layers))
}

fn malformed(why: &str) -> Error {
    Error::Invalid(why.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn descriptor(kind: &str) -> Value {
        json!({"mediaType": kind, "digest": Digest::of(b"").to_string(), "size": 7})
    }

    fn parse(document: &Value) -> Result<Document> {
        Document::parse(document.to_string().as_bytes())
    }

    #[test]
    fn an_index_leads_to_the_manifest_of_this_machine() {
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json");
        entry["platform"] = json!({"os": "linux", "architecture": architecture()});
        let other = json!({"digest": "sha256:00", "size": 1, "platform": {"os": "windows", "architecture": "amd64"}});
        let found = parse(&json!({"schemaVersion": 2, "manifests": [other, entry]})).unwrap();
        assert_eq!(found, Document::Index(Digest::of(b"")));
        let error = parse(&json!({"manifests": [other]})).unwrap_err().to_string();
        assert!(error.contains("no variant for linux/"), "{error}");
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let layer = "application/vnd.oci.image.layer.v1.tar+gzip";
        let config = descriptor("application/vnd.oci.image.config.v1+json");
        let image = parse(&json!({"config": config, "layers": [descriptor(layer)]})).unwrap();
        assert!(matches!(image, Document::Image { layers, .. } if layers.len() == 1));
        let many: Vec<Value> = (0..=MAX_LAYERS).map(|_| descriptor(layer)).collect();
        for document in [
            json!([]),
            json!({}),
            json!({"config": config}),
            json!({"config": config, "layers": [descriptor(layer)], "manifests": []}),
            json!({"config": config, "layers": [descriptor("application/vnd.example.model")]}),
            json!({"config": config, "layers": many}),
            json!({"config": {"digest": "md5:00", "size": 1}, "layers": []}),
            json!({"config": config, "layers": [{"mediaType": layer, "digest": "sha256:00", "size": -1}]}),
        ] {
            assert!(matches!(parse(&document), Err(Error::Invalid(_))), "{document}");
        }
    }

    #[test]
    fn a_configuration_says_how_commands_run() {
        let blob = Blob {
            digest: Digest::of(b""),
            size: 1,
        };
        let content = Digest::of(b"content");
        let file = json!({
            "os": "linux",
            "architecture": architecture(),
            "config": {"User": "1000:1000", "WorkingDir": "/app", "Env": ["PATH=/bin", "A=b=c", "=x", "none"]},
            "rootfs": {"type": "layers", "diff_ids": [content.to_string()]},
        });
        let read = |file: &Value| parse_config(file.to_string().as_bytes(), vec![blob.clone()]);
        let (config, layers) = read(&file).unwrap();
        assert_eq!(
            (config.user.as_str(), config.work_dir.as_deref()),
            ("1000", Some("/app"))
        );
        let env: Vec<(&str, &str)> = config.env.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(env, [("A", "b=c"), ("PATH", "/bin")]);
        assert_eq!(
            layers,
            [LayerBlob {
                blob: blob.clone(),
                content
            }]
        );

        let bare = json!({"config": null, "rootfs": {"diff_ids": [Digest::of(b"").to_string()]}});
        assert_eq!(read(&bare).unwrap().0.user, "root");
        for wrong in [
            json!({"rootfs": {"diff_ids": []}}),
            json!({"rootfs": {"diff_ids": ["sha512:00"]}}),
            json!({"os": "windows", "rootfs": {"diff_ids": [Digest::of(b"").to_string()]}}),
        ] {
            assert!(matches!(read(&wrong), Err(Error::Invalid(_))), "{wrong}");
        }
    }
}
