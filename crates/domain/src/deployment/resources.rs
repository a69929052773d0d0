//! Resource requests of deployments.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::DeploymentType;
use crate::Rejection;

/// CPUs. Whole numbers are written without a fraction. Not rounded until [`ResourceSpec::with_defaults`], so that
/// validation sees the sent value.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Quantity(f64);

impl Quantity {
    /// Rounds to a tenth.
    #[must_use]
    pub fn new(cpus: f64) -> Self {
        Self((cpus * 10.0).round() / 10.0)
    }

    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    fn doubled(self) -> Self {
        Self::new(self.0 * 2.0)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 {
            #[expect(clippy::cast_possible_truncation, reason = "it is whole, and small")]
            to.serialize_i64(self.0 as i64)
        } else {
            to.serialize_f64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = serde_json::Number::deserialize(from)?;
        number
            .as_f64()
            .map(Self)
            .ok_or_else(|| D::Error::custom("invalid value, expected a number"))
    }
}

/// A whole number, also written as `57.0`.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    let Some(number) = Option::<serde_json::Number>::deserialize(from)? else {
        return Ok(None);
    };
    let exact = number.as_i64().or_else(|| {
        #[expect(clippy::cast_possible_truncation, reason = "only whole numbers within 2^53 pass")]
        number
            .as_f64()
            .filter(|value| value.fract() == 0.0 && value.abs() < 9e15)
            .map(|value| value as i64)
    });
    exact
        .map(Some)
        .ok_or_else(|| D::Error::custom("invalid value, expected a whole number"))
}

macro_rules! resource_spec {
    (cpus: $($cpu:ident)*; wholes: $($whole:ident)*;) => {
        /// The resources of a deployment: memory in MB, storage in GiB, CPU in CPUs. Stored and returned in full, even
        /// if a backend cannot apply a part of it.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct ResourceSpec {
            $(pub $cpu: Option<Quantity>,)*
            $(#[serde(deserialize_with = "whole")] pub $whole: Option<i64>,)*
            pub labels: Option<BTreeMap<String, String>>,
            pub annotations: Option<BTreeMap<String, String>>,
            pub service_account_name: Option<String>,
            pub image_pull_secrets: Option<Vec<LocalReference>>,
            pub volumes: Option<Vec<Volume>>,
            pub volume_mounts: Option<Vec<VolumeMount>>,
            pub init_containers: Option<Vec<Container>>,
            pub sidecars: Option<Vec<Container>>,
        }

        impl ResourceSpec {
            pub const CPUS: &[&str] = &[$(stringify!($cpu)),*];
            pub const WHOLES: &[&str] = &[$(stringify!($whole)),*];

            /// Rounds every number of CPUs to a tenth.
            fn round(&mut self) {
                $(self.$cpu = self.$cpu.map(|cpus| Quantity::new(cpus.get()));)*
            }

            fn cpus(&self) -> Vec<(&'static str, Option<Quantity>)> {
                vec![$((stringify!($cpu), self.$cpu),)*]
            }

            fn wholes(&self) -> Vec<(&'static str, Option<i64>)> {
                vec![$((stringify!($whole), self.$whole),)*]
            }
        }
    };
}

resource_spec! {
    cpus: cpu cpu_limit queue_cpu queue_cpu_limit orchestrator_cpu orchestrator_cpu_limit executor_cpu
        executor_cpu_limit redis_cpu redis_cpu_limit db_cpu db_cpu_limit;
    wholes: min_scale max_scale memory_mb memory_limit_mb queue_min_scale queue_max_scale queue_memory_mb
        queue_memory_limit_mb orchestrator_memory_mb orchestrator_memory_limit_mb orchestrator_min_scale
        orchestrator_max_scale executor_memory_mb executor_memory_limit_mb redis_memory_mb redis_memory_limit_mb
        db_memory_mb db_memory_limit_mb db_storage_gi db_max_connections;
}

/// A reference to an object in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalReference {
    pub name: String,
}

/// A volume of a replica. The cluster validates its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Volume {
    /// A DNS label, unique in the replica.
    pub name: String,
    /// Its source, under one of the names in [`Volume::SOURCES`].
    #[serde(flatten, deserialize_with = "volume_sources")]
    pub source: BTreeMap<String, Map<String, Value>>,
}

impl Volume {
    pub const SOURCES: [&'static str; 8] = [
        "configMap",
        "secret",
        "emptyDir",
        "persistentVolumeClaim",
        "nfs",
        "projected",
        "downwardAPI",
        "csi",
    ];
}

fn volume_sources<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Map<String, Value>>, D::Error> {
    let sent = BTreeMap::<String, Option<Map<String, Value>>>::deserialize(from)?;
    if let Some(unknown) = sent.keys().find(|name| !Volume::SOURCES.contains(&name.as_str())) {
        return Err(D::Error::unknown_field(unknown, &Volume::SOURCES));
    }
    Ok(sent
        .into_iter()
        .filter_map(|(name, source)| Some((name, source?)))
        .collect())
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeMount {
    pub name: String,
    pub mount_path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// As [`VolumeMount::sub_path`], with variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path_expr: Option<String>,
    /// How mounts propagate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_propagation: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// A further container of a replica. The cluster validates the fields other than name and image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Container {
    /// A DNS label, unique in the replica.
    pub name: String,
    pub image: String,
    /// Other fields, named in [`Container::FIELDS`].
    #[serde(flatten, deserialize_with = "container_fields")]
    pub rest: Map<String, Value>,
}

impl Container {
    /// Allowed fields besides name and image.
    pub const FIELDS: [&'static str; 10] = [
        "imagePullPolicy",
        "command",
        "args",
        "workingDir",
        "env",
        "envFrom",
        "resources",
        "volumeMounts",
        "securityContext",
        "restartPolicy",
    ];
}

fn container_fields<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Value>, D::Error> {
    let rest = Map::deserialize(from)?;
    match rest.keys().find(|name| !Container::FIELDS.contains(&name.as_str())) {
        Some(unknown) => Err(D::Error::unknown_field(unknown, &Container::FIELDS)),
        None => Ok(rest),
    }
}

/// A DNS label of RFC 1123.
fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=63).contains(&name.len())
        && name.bytes().all(|byte| inner(byte) || byte == b'-')
        && name.bytes().next().is_some_and(inner)
        && name.bytes().next_back().is_some_and(inner)
}

impl ResourceSpec {
    /// Validates the request, with defaults filled in.
    pub fn check(&self, field: &str, of: Option<DeploymentType>) -> Result<(), Rejection> {
        let at = |name: &str| format!("{field}.{name}");
        for (name, value) in self.cpus() {
            let most = Self::most_cpus(name);
            if value.is_some_and(|Quantity(cpus)| !(0.1..=most).contains(&cpus)) {
                return Err(Rejection::invalid(
                    at(name),
                    format!("expected a number between 0.1 and {most}"),
                ));
            }
        }
        for (name, value) in self.wholes() {
            let (least, most) = Self::range(name);
            if value.is_some_and(|value| !(least..=most).contains(&value)) {
                let text = format!("expected a whole number between {least} and {most}");
                return Err(Rejection::invalid(at(name), text));
            }
        }
        self.check_names(&at)?;
        self.with_defaults(of).check_pairs(&at)
    }

    /// The upper limit of a field in CPUs; the lower limit is 0.1.
    #[must_use]
    pub fn most_cpus(name: &str) -> f64 {
        if name.ends_with("_limit") { 16.0 } else { 8.0 }
    }

    /// The range of an integer field.
    #[must_use]
    pub fn range(name: &str) -> (i64, i64) {
        match name {
            name if name.ends_with("min_scale") => (0, 1_000),
            name if name.ends_with("max_scale") => (1, 1_000),
            "db_max_connections" => (1, 100_000),
            "db_storage_gi" => (1, 65_536),
            _ => (1, 4 << 20),
        }
    }

    /// A limit must not be less than its request, nor a maximum less than its minimum.
    fn check_pairs(&self, at: &dyn Fn(&str) -> String) -> Result<(), Rejection> {
        let cpus: BTreeMap<_, _> = self.cpus().into_iter().collect();
        let wholes: BTreeMap<_, _> = self.wholes().into_iter().collect();
        let below = |limit: &str, request: String| {
            Err(Rejection::rule(
                at(limit),
                format!("{limit} must not be less than {request}"),
            ))
        };
        for (&name, limit) in &cpus {
            let Some(request) = name.strip_suffix("_limit") else {
                continue;
            };
            if let (Some(limit), Some(Some(least))) = (limit, cpus.get(request))
                && limit < least
            {
                return below(name, format!("{request} ({})", least.get()));
            }
        }
        for (&name, limit) in &wholes {
            let request = match name.strip_suffix("_limit_mb") {
                Some(kind) => format!("{kind}_mb"),
                None if name.ends_with("max_scale") => name.replace("max_scale", "min_scale"),
                None => continue,
            };
            if let (Some(limit), Some(Some(least))) = (limit, wholes.get(request.as_str()))
                && limit < least
            {
                return below(name, format!("{request} ({least})"));
            }
        }
        Ok(())
    }

    fn check_names(&self, at: &dyn Fn(&str) -> String) -> Result<(), Rejection> {
        const LABEL: &str = "expected a DNS label: at most 63 lower-case letters, digits and inner dashes";
        let mut volumes = BTreeSet::new();
        for (index, volume) in self.volumes.iter().flatten().enumerate() {
            if !is_label(&volume.name) {
                return Err(Rejection::invalid(at(&format!("volumes.{index}.name")), LABEL));
            }
            if !volumes.insert(volume.name.as_str()) {
                return Err(Rejection::rule(
                    at("volumes"),
                    format!("duplicate volume name {}", volume.name),
                ));
            }
        }
        let lists = [("init_containers", &self.init_containers), ("sidecars", &self.sidecars)];
        let mut containers = BTreeSet::new();
        for (list, sent) in lists {
            for (index, container) in sent.iter().flatten().enumerate() {
                if !is_label(&container.name) {
                    return Err(Rejection::invalid(at(&format!("{list}.{index}.name")), LABEL));
                }
                if container.image.trim().is_empty() {
                    return Err(Rejection::invalid(
                        at(&format!("{list}.{index}.image")),
                        "must not be empty",
                    ));
                }
                if !containers.insert(container.name.as_str()) {
                    return Err(Rejection::rule(
                        at(list),
                        format!("duplicate container name {}", container.name),
                    ));
                }
            }
        }
        for (index, mount) in self.volume_mounts.iter().flatten().enumerate() {
            if !volumes.contains(mount.name.as_str()) {
                return Err(Rejection::rule(
                    at("volume_mounts"),
                    format!("volume_mounts.{index}.name: {} is not one of the volumes", mount.name),
                ));
            }
        }
        Ok(())
    }

    /// The fields that request something beyond the single default replica.
    #[must_use]
    pub fn requested_settings(&self) -> Vec<String> {
        let Ok(Value::Object(fields)) = serde_json::to_value(self) else {
            return Vec::new();
        };
        let one = |name: &str, value: &Value| name.ends_with("_scale") && *value == 1;
        let asks = |(name, value): &(String, Value)| !value.is_null() && !one(name, value);
        let mut names: Vec<String> = fields.into_iter().filter(asks).map(|(name, _)| name).collect();
        names.sort();
        names
    }

    /// Fills in the defaults.
    #[must_use]
    pub fn with_defaults(&self, of: Option<DeploymentType>) -> Self {
        let (cpu, memory_mb, most) = match of {
            Some(DeploymentType::Prod) => (2.0, 2048, 10),
            _ => (1.0, 1024, 1),
        };
        let mut spec = self.clone();
        spec.round();
        let (cpu, memory) = (
            *spec.cpu.get_or_insert(Quantity::new(cpu)),
            *spec.memory_mb.get_or_insert(memory_mb),
        );
        spec.cpu_limit.get_or_insert(cpu.doubled());
        spec.memory_limit_mb.get_or_insert(memory.saturating_mul(2));
        let least = *spec
            .min_scale
            .get_or_insert(spec.max_scale.map_or(1, |most| most.min(1)));
        let most = *spec.max_scale.get_or_insert(most.max(least));
        spec.queue_min_scale
            .get_or_insert(spec.queue_max_scale.map_or(least, |most| most.min(least)));
        let queue_least = spec.queue_min_scale.unwrap_or(least);
        spec.queue_max_scale.get_or_insert(most.max(queue_least));
        let queue_cpu = *spec.queue_cpu.get_or_insert(cpu);
        let queue_memory = *spec.queue_memory_mb.get_or_insert(memory);
        spec.queue_cpu_limit.get_or_insert(queue_cpu.doubled());
        spec.queue_memory_limit_mb.get_or_insert(queue_memory.saturating_mul(2));
        spec.db_cpu_limit = spec.db_cpu_limit.or(spec.db_cpu.map(Quantity::doubled));
        spec.db_memory_limit_mb = spec
            .db_memory_limit_mb
            .or(spec.db_memory_mb.map(|mb| mb.saturating_mul(2)));
        spec.redis_cpu_limit = spec.redis_cpu_limit.or(spec.redis_cpu.map(Quantity::doubled));
        spec.redis_memory_limit_mb = spec.redis_memory_limit_mb.or(spec.redis_memory_mb);
        spec
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::RejectionKind;

    fn spec(json: Value) -> ResourceSpec {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_is_left_out_is_filled_in() {
        let filled =
            serde_json::to_value(spec(json!({"cpu": 1.5, "memory_mb": 2000, "max_scale": 4})).with_defaults(None))
                .unwrap();
        let expected = json!({
            "cpu": 1.5, "cpu_limit": 3, "memory_mb": 2000, "memory_limit_mb": 4000, "min_scale": 1, "max_scale": 4,
            "queue_cpu": 1.5, "queue_cpu_limit": 3, "queue_memory_mb": 2000, "queue_memory_limit_mb": 4000,
            "queue_min_scale": 1, "queue_max_scale": 4,
        });
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&filled[name], value, "{name}");
        }
        assert_eq!(filled["db_cpu_limit"], Value::Null);
        let prod = ResourceSpec::default().with_defaults(Some(DeploymentType::Prod));
        assert_eq!(
            (prod.cpu.unwrap().get(), prod.memory_mb, prod.max_scale),
            (2.0, Some(2048), Some(10))
        );
        let database = spec(json!({"db_cpu": 0.5, "db_memory_mb": 100, "redis_memory_mb": 64})).with_defaults(None);
        assert_eq!(database.db_cpu_limit, Some(Quantity::new(1.0)));
        assert_eq!(
            (database.db_memory_limit_mb, database.redis_memory_limit_mb),
            (Some(200), Some(64))
        );
    }

    #[test]
    fn what_is_asked_for_has_a_name() {
        let asks = spec(json!({"cpu": 2, "min_scale": 1, "max_scale": 3, "labels": {}, "db_cpu": null}));
        assert_eq!(asks.requested_settings(), ["cpu", "labels", "max_scale"]);
        assert_eq!(ResourceSpec::default().requested_settings(), [""; 0]);
    }

    #[test]
    fn numbers_have_ranges_and_pairs() {
        for (sent, why, field) in [
            (json!({"cpu": 0}), RejectionKind::Invalid, "r.cpu"),
            (json!({"cpu": 8.1}), RejectionKind::Invalid, "r.cpu"),
            (json!({"cpu": 8.04}), RejectionKind::Invalid, "r.cpu"),
            (json!({"cpu": 0.06}), RejectionKind::Invalid, "r.cpu"),
            (
                json!({"queue_cpu_limit": 16.1}),
                RejectionKind::Invalid,
                "r.queue_cpu_limit",
            ),
            (json!({"memory_mb": 0}), RejectionKind::Invalid, "r.memory_mb"),
            (json!({"max_scale": 0}), RejectionKind::Invalid, "r.max_scale"),
            (json!({"min_scale": -1}), RejectionKind::Invalid, "r.min_scale"),
            (json!({"cpu": 4, "cpu_limit": 2}), RejectionKind::Rule, "r.cpu_limit"),
            (json!({"cpu_limit": 0.5}), RejectionKind::Rule, "r.cpu_limit"),
            (
                json!({"memory_mb": 100, "memory_limit_mb": 99}),
                RejectionKind::Rule,
                "r.memory_limit_mb",
            ),
            (
                json!({"min_scale": 3, "max_scale": 2}),
                RejectionKind::Rule,
                "r.max_scale",
            ),
            (
                json!({"queue_min_scale": 3, "queue_max_scale": 2}),
                RejectionKind::Rule,
                "r.queue_max_scale",
            ),
            (
                json!({"db_cpu": 2, "db_cpu_limit": 1}),
                RejectionKind::Rule,
                "r.db_cpu_limit",
            ),
            (
                json!({"volumes": [{"name": "A"}]}),
                RejectionKind::Invalid,
                "r.volumes.0.name",
            ),
            (
                json!({"volumes": [{"name": "a"}, {"name": "a"}]}),
                RejectionKind::Rule,
                "r.volumes",
            ),
            (
                json!({"volume_mounts": [{"name": "a", "mountPath": "/a"}]}),
                RejectionKind::Rule,
                "r.volume_mounts",
            ),
            (
                json!({"sidecars": [{"name": "a", "image": ""}]}),
                RejectionKind::Invalid,
                "r.sidecars.0.image",
            ),
        ] {
            let refused = spec(sent.clone()).check("r", None).unwrap_err();
            assert_eq!((refused.kind, refused.field.as_str()), (why, field), "{sent}");
        }
        for fine in [
            json!({}),
            json!({"cpu": 0.1, "cpu_limit": 0.1}),
            json!({"cpu": 2.0, "memory_mb": 57.0}),
            json!({"max_scale": 1}),
            json!({"min_scale": 5}),
            json!({"volumes": [{"name": "a", "emptyDir": {}, "secret": null}], "volume_mounts": [{"name": "a", "mountPath": "/a"}]}),
            json!({"sidecars": [{"name": "a", "image": "b", "args": ["c"]}]}),
        ] {
            assert_eq!(spec(fine.clone()).check("r", None), Ok(()), "{fine}");
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        for wrong in [
            json!({"cpus": 1}),
            json!({"cpu": "1"}),
            json!({"memory_mb": 1.5}),
            json!({"volumes": [{"name": "a", "hostPath": {}}]}),
            json!({"volumes": [{"emptyDir": {}}]}),
            json!({"sidecars": [{"name": "a", "image": "b", "more": 1}]}),
            json!({"image_pull_secrets": [{}]}),
        ] {
            assert!(
                serde_json::from_value::<ResourceSpec>(wrong.clone()).is_err(),
                "{wrong}"
            );
        }
    }
}
