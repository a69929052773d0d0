//! A driver for tests that runs nothing and does what a test specifies. Its sandboxes have no agent.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use towpath_sandbox::{
    BoxHandle, BoxSpec, BoxState, Capabilities, Driver, Error, Generation, ImageRequest, Isolation, Layer, Result,
    RootFileSystem, VolumeSource,
};
use uuid::Uuid;

#[derive(Debug, Default)]
pub struct FakeDriver(Mutex<FakeState>);

#[derive(Debug, Default)]
struct FakeState {
    boxes: HashMap<Uuid, FakeBox>,
    layers: HashSet<Uuid>,
    volumes: HashMap<Uuid, u64>,
    /// Results of the next starts.
    failures: VecDeque<Error>,
    /// Started sandboxes.
    started: Vec<BoxSpec>,
    /// In the order of their requests.
    prepared: Vec<ImageRequest>,
    images: HashSet<String>,
    is_without_limits: bool,
}

#[derive(Clone, Copy, Debug)]
struct FakeBox {
    generation: Generation,
    is_running: bool,
}

impl FakeDriver {
    /// Makes the next start fail.
    pub fn fail_next_start(&self, error: Error) {
        self.0.lock().failures.push_back(error);
    }

    /// From now on the machine enforces no limits.
    pub fn disable_limits(&self) {
        self.0.lock().is_without_limits = true;
    }

    /// Ends the processes of a sandbox unexpectedly.
    pub fn end_processes(&self, id: Uuid) {
        if let Some(life) = self.0.lock().boxes.get_mut(&id) {
            life.is_running = false;
        }
    }

    /// Runs a sandbox without a row.
    pub fn run_unknown(&self, id: Uuid, generation: Generation) {
        let life = FakeBox {
            generation,
            is_running: true,
        };
        self.0.lock().boxes.insert(id, life);
    }

    /// Generation of a running sandbox.
    #[must_use]
    pub fn running_generation(&self, id: Uuid) -> Option<Generation> {
        let inner = self.0.lock();
        let life = inner.boxes.get(&id).filter(|life| life.is_running);
        life.map(|life| life.generation)
    }

    /// Whether the machine has any data of a sandbox.
    #[must_use]
    pub fn has_box(&self, id: Uuid) -> bool {
        self.0.lock().boxes.contains_key(&id)
    }

    #[must_use]
    pub fn has_layer(&self, layer: Uuid) -> bool {
        self.0.lock().layers.contains(&layer)
    }

    /// The size of a volume, if it exists.
    #[must_use]
    pub fn volume(&self, id: Uuid) -> Option<u64> {
        self.0.lock().volumes.get(&id).copied()
    }

    #[must_use]
    pub fn has_image(&self, name: &str) -> bool {
        self.0.lock().images.contains(name)
    }

    /// Requests for images, in order.
    #[must_use]
    pub fn image_requests(&self) -> Vec<ImageRequest> {
        self.0.lock().prepared.clone()
    }

    /// Started sandboxes, in order.
    #[must_use]
    pub fn started_specs(&self) -> Vec<BoxSpec> {
        self.0.lock().started.clone()
    }
}

fn fake_handle(id: Uuid, generation: Generation) -> BoxHandle {
    BoxHandle {
        id,
        generation,
        pid: None,
        folder: PathBuf::from("/nonexistent").join(format!("{id}.{generation}")),
    }
}

fn stale_error(id: Uuid, asked: Generation, newest: Generation) -> Error {
    Error::Stale { id, asked, newest }
}

#[async_trait]
impl Driver for FakeDriver {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        let limits = !self.0.lock().is_without_limits;
        Ok(Capabilities {
            isolation: Isolation::Namespace,
            can_limit_memory: limits,
            can_limit_cpu: limits,
            can_limit_processes: limits,
            can_limit_disk: limits,
            can_freeze: true,
            can_suspend: false,
            can_mount_images: false,
            missing: if limits {
                Vec::new()
            } else {
                vec!["It has no control groups.".to_owned()]
            },
        })
    }

    async fn prepare(&self, image: &ImageRequest) -> Result<RootFileSystem> {
        if image.name == "missing" {
            return Err(Error::NotFound("there is no image missing".to_owned()));
        }
        let mut inner = self.0.lock();
        inner.prepared.push(image.clone());
        inner.images.insert(image.name.clone());
        Ok(RootFileSystem {
            base: image.name.clone(),
            layers: Vec::new(),
        })
    }

    async fn is_prepared(&self, base: &str) -> Result<bool> {
        Ok(self.0.lock().images.contains(base))
    }

    async fn remove_unused_images(&self, bases: &BTreeSet<String>) -> Result<()> {
        self.0.lock().images.retain(|image| bases.contains(image));
        Ok(())
    }

    async fn start(&self, spec: &BoxSpec, generation: Generation) -> Result<BoxHandle> {
        let mut inner = self.0.lock();
        if let Some(error) = inner.failures.pop_front() {
            return Err(error);
        }
        match inner.boxes.get(&spec.id) {
            Some(life) if life.generation > generation || (life.generation == generation && !life.is_running) => {
                return Err(stale_error(spec.id, generation, life.generation));
            }
            Some(life) if life.generation == generation => {}
            _ => inner.started.push(spec.clone()),
        }
        let life = FakeBox {
            generation,
            is_running: true,
        };
        inner.boxes.insert(spec.id, life);
        Ok(fake_handle(spec.id, generation))
    }

    async fn adopt(&self, id: Uuid, generation: Generation) -> Result<Option<BoxHandle>> {
        let runs = self.running_generation(id) == Some(generation);
        Ok(runs.then(|| fake_handle(id, generation)))
    }

    async fn freeze(&self, _: &BoxHandle) -> Result<()> {
        Ok(())
    }

    async fn thaw(&self, _: &BoxHandle) -> Result<()> {
        Ok(())
    }

    async fn capture_layer(&self, id: Uuid, _: Generation, layer: Uuid) -> Result<Layer> {
        let mut inner = self.0.lock();
        if !inner.boxes.contains_key(&id) {
            return Err(Error::NotFound("there is no such box".to_owned()));
        }
        inner.layers.insert(layer);
        Ok(Layer {
            id: layer,
            used_bytes: 4096,
        })
    }

    async fn remove_layer(&self, layer: Uuid) -> Result<()> {
        self.0.lock().layers.remove(&layer);
        Ok(())
    }

    async fn stop(&self, id: Uuid, generation: Generation, _: Duration) -> Result<()> {
        let mut inner = self.0.lock();
        let Some(life) = inner.boxes.get_mut(&id) else {
            return Err(Error::NotRunning);
        };
        if life.generation > generation {
            return Err(stale_error(id, generation, life.generation));
        }
        life.is_running = false;
        Ok(())
    }

    async fn destroy(&self, id: Uuid, generation: Generation) -> Result<()> {
        let life = FakeBox {
            generation,
            is_running: false,
        };
        self.0.lock().boxes.insert(id, life);
        Ok(())
    }

    async fn forget(&self, id: Uuid) -> Result<()> {
        self.0.lock().boxes.remove(&id);
        Ok(())
    }

    async fn make_volume(&self, id: Uuid, bytes: u64) -> Result<VolumeSource> {
        self.0.lock().volumes.entry(id).or_insert(bytes);
        Ok(VolumeSource::Folder(PathBuf::from("/nonexistent").join(id.to_string())))
    }

    async fn grow_volume(&self, id: Uuid, bytes: u64) -> Result<()> {
        self.0.lock().volumes.insert(id, bytes);
        Ok(())
    }

    async fn remove_volume(&self, id: Uuid) -> Result<()> {
        self.0.lock().volumes.remove(&id);
        Ok(())
    }

    async fn inventory(&self) -> Result<Vec<BoxState>> {
        let inner = self.0.lock();
        let marks = inner.boxes.iter().map(|(id, life)| BoxState {
            id: *id,
            generation: life.generation,
            is_running: life.is_running,
        });
        Ok(marks.collect())
    }
}
