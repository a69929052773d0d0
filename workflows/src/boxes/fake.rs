//! For tests: a driver that runs nothing and does what a test tells it. Nobody answers in its boxes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use towpath_sandbox::{
    BoxSpec, Capabilities, Driver, Error, Generation, Handle, Isolation, Layer, Mark, Result, Root, Source,
};
use uuid::Uuid;

use super::lock;

/// The driver.
#[derive(Debug, Default)]
pub struct Fake(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    boxes: HashMap<Uuid, Life>,
    layers: HashSet<Uuid>,
    volumes: HashMap<Uuid, u64>,
    /// What the next starts answer.
    failures: VecDeque<Error>,
    /// What was started.
    started: Vec<BoxSpec>,
    is_without_limits: bool,
}

#[derive(Clone, Copy, Debug)]
struct Life {
    generation: Generation,
    is_running: bool,
}

impl Fake {
    /// The next start fails in this way.
    pub fn fail_next_start(&self, error: Error) {
        lock(&self.0).failures.push_back(error);
    }

    /// The machine enforces no limit from now on.
    pub fn forget_limits(&self) {
        lock(&self.0).is_without_limits = true;
    }

    /// The processes of a box end by themselves.
    pub fn kill(&self, id: Uuid) {
        if let Some(life) = lock(&self.0).boxes.get_mut(&id) {
            life.is_running = false;
        }
    }

    /// A box that no row names runs.
    pub fn intrude(&self, id: Uuid, generation: Generation) {
        let life = Life {
            generation,
            is_running: true,
        };
        lock(&self.0).boxes.insert(id, life);
    }

    /// The life of a box, where it runs.
    #[must_use]
    pub fn running(&self, id: Uuid) -> Option<Generation> {
        let inner = lock(&self.0);
        let life = inner.boxes.get(&id).filter(|life| life.is_running);
        life.map(|life| life.generation)
    }

    /// Whether the machine has anything of a box.
    #[must_use]
    pub fn knows(&self, id: Uuid) -> bool {
        lock(&self.0).boxes.contains_key(&id)
    }

    /// Whether there is such a layer.
    #[must_use]
    pub fn has_layer(&self, layer: Uuid) -> bool {
        lock(&self.0).layers.contains(&layer)
    }

    /// The size of a volume, where the machine has it.
    #[must_use]
    pub fn volume(&self, id: Uuid) -> Option<u64> {
        lock(&self.0).volumes.get(&id).copied()
    }

    /// What was started, in its order.
    #[must_use]
    pub fn started(&self) -> Vec<BoxSpec> {
        lock(&self.0).started.clone()
    }
}

fn handle(id: Uuid, generation: Generation) -> Handle {
    Handle {
        id,
        generation,
        pid: None,
        folder: PathBuf::from("/nonexistent").join(format!("{id}.{generation}")),
    }
}

fn stale(id: Uuid, asked: Generation, newest: Generation) -> Error {
    Error::Stale { id, asked, newest }
}

#[async_trait]
impl Driver for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        let limits = !lock(&self.0).is_without_limits;
        Ok(Capabilities {
            isolation: Isolation::Namespace,
            limits_memory: limits,
            limits_cpu: limits,
            limits_processes: limits,
            limits_disk: limits,
            freezes: true,
            suspends: false,
            mounts_images: false,
            missing: if limits {
                Vec::new()
            } else {
                vec!["It has no control groups.".to_owned()]
            },
        })
    }

    async fn prepare(&self, image: &str) -> Result<Root> {
        if image == "missing" {
            return Err(Error::NotFound("there is no image missing".to_owned()));
        }
        Ok(Root {
            base: image.to_owned(),
            layers: Vec::new(),
        })
    }

    async fn start(&self, spec: &BoxSpec, generation: Generation) -> Result<Handle> {
        let mut inner = lock(&self.0);
        if let Some(error) = inner.failures.pop_front() {
            return Err(error);
        }
        match inner.boxes.get(&spec.id) {
            Some(life) if life.generation > generation || (life.generation == generation && !life.is_running) => {
                return Err(stale(spec.id, generation, life.generation));
            }
            Some(life) if life.generation == generation => {}
            _ => inner.started.push(spec.clone()),
        }
        let life = Life {
            generation,
            is_running: true,
        };
        inner.boxes.insert(spec.id, life);
        Ok(handle(spec.id, generation))
    }

    async fn adopt(&self, id: Uuid, generation: Generation) -> Result<Option<Handle>> {
        let runs = self.running(id) == Some(generation);
        Ok(runs.then(|| handle(id, generation)))
    }

    async fn freeze(&self, _: &Handle) -> Result<()> {
        Ok(())
    }

    async fn thaw(&self, _: &Handle) -> Result<()> {
        Ok(())
    }

    async fn seal(&self, id: Uuid, _: Generation, layer: Uuid) -> Result<Layer> {
        let mut inner = lock(&self.0);
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
        lock(&self.0).layers.remove(&layer);
        Ok(())
    }

    async fn stop(&self, id: Uuid, generation: Generation, _: Duration) -> Result<()> {
        let mut inner = lock(&self.0);
        let Some(life) = inner.boxes.get_mut(&id) else {
            return Err(Error::NotRunning);
        };
        if life.generation > generation {
            return Err(stale(id, generation, life.generation));
        }
        life.is_running = false;
        Ok(())
    }

    async fn destroy(&self, id: Uuid, generation: Generation) -> Result<()> {
        let life = Life {
            generation,
            is_running: false,
        };
        lock(&self.0).boxes.insert(id, life);
        Ok(())
    }

    async fn forget(&self, id: Uuid) -> Result<()> {
        lock(&self.0).boxes.remove(&id);
        Ok(())
    }

    async fn make_volume(&self, id: Uuid, bytes: u64) -> Result<Source> {
        lock(&self.0).volumes.entry(id).or_insert(bytes);
        Ok(Source::Folder(PathBuf::from("/nonexistent").join(id.to_string())))
    }

    async fn grow_volume(&self, id: Uuid, bytes: u64) -> Result<()> {
        lock(&self.0).volumes.insert(id, bytes);
        Ok(())
    }

    async fn remove_volume(&self, id: Uuid) -> Result<()> {
        lock(&self.0).volumes.remove(&id);
        Ok(())
    }

    async fn inventory(&self) -> Result<Vec<Mark>> {
        let inner = lock(&self.0);
        let marks = inner.boxes.iter().map(|(id, life)| Mark {
            id: *id,
            generation: life.generation,
            is_running: life.is_running,
        });
        Ok(marks.collect())
    }
}
