//! The resource specification in the API description. Fields and ranges come from the domain crate.

use std::borrow::Cow;

use towpath_domain::deployment::{Container, ResourceSpec, Volume};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, Object, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

pub struct ResourceSpecSchema;

impl ToSchema for ResourceSpecSchema {
    fn name() -> Cow<'static, str> {
        "ResourceSpec".into()
    }
}

fn nullable(kind: Type) -> SchemaType {
    SchemaType::from_iter([kind, Type::Null])
}

fn text() -> Object {
    ObjectBuilder::new().schema_type(Type::String).build()
}

fn label() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"))
        .build()
}

fn map_of_texts() -> Object {
    ObjectBuilder::new()
        .schema_type(nullable(Type::Object))
        .additional_properties(Some(AdditionalProperties::<Schema>::RefOr(text().into())))
        .build()
}

fn closed(object: ObjectBuilder) -> ObjectBuilder {
    object.additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)))
}

fn list(of: Object) -> Schema {
    ArrayBuilder::new()
        .schema_type(nullable(Type::Array))
        .items(of)
        .build()
        .into()
}

fn anything() -> Object {
    Object::with_type(SchemaType::AnyValue)
}

fn container() -> Object {
    let mut object = closed(ObjectBuilder::new().schema_type(Type::Object))
        .property("name", label())
        .required("name")
        .property(
            "image",
            ObjectBuilder::new()
                .schema_type(Type::String)
                .min_length(Some(1))
                .build(),
        )
        .required("image");
    for name in Container::FIELDS {
        object = object.property(name, anything());
    }
    object.build()
}

fn volume() -> Object {
    let mut object = closed(ObjectBuilder::new().schema_type(Type::Object))
        .property("name", label())
        .required("name");
    for name in Volume::SOURCES {
        object = object.property(name, ObjectBuilder::new().schema_type(nullable(Type::Object)).build());
    }
    object.build()
}

fn volume_mount() -> Object {
    let mut object = closed(ObjectBuilder::new().schema_type(Type::Object));
    for name in ["name", "mountPath"] {
        object = object.property(name, text()).required(name);
    }
    for name in ["subPath", "subPathExpr", "mountPropagation"] {
        object = object.property(name, ObjectBuilder::new().schema_type(nullable(Type::String)).build());
    }
    object
        .property(
            "readOnly",
            ObjectBuilder::new().schema_type(nullable(Type::Boolean)).build(),
        )
        .build()
}

impl PartialSchema for ResourceSpecSchema {
    fn schema() -> RefOr<Schema> {
        let mut object = closed(ObjectBuilder::new().schema_type(Type::Object)).description(Some(
            "Resources of a deployment. CPU in CPUs, memory in MB, storage in GiB. Limits default to twice the request, \
             and those of the queue to those of the API.",
        ));
        for name in ResourceSpec::CPUS {
            let field = ObjectBuilder::new()
                .schema_type(nullable(Type::Number))
                .minimum(Some(0.1))
                .maximum(Some(ResourceSpec::most_cpus(name)));
            object = object.property(*name, field.build());
        }
        for name in ResourceSpec::WHOLES {
            let (least, most) = ResourceSpec::range(name);
            let field = ObjectBuilder::new()
                .schema_type(nullable(Type::Integer))
                .minimum(Some(least))
                .maximum(Some(most));
            object = object.property(*name, field.build());
        }
        let reference = closed(ObjectBuilder::new().schema_type(Type::Object))
            .property("name", text())
            .required("name");
        object
            .property("labels", map_of_texts())
            .property("annotations", map_of_texts())
            .property(
                "service_account_name",
                ObjectBuilder::new().schema_type(nullable(Type::String)).build(),
            )
            .property("image_pull_secrets", list(reference.build()))
            .property("volumes", list(volume()))
            .property("volume_mounts", list(volume_mount()))
            .property("init_containers", list(container()))
            .property("sidecars", list(container()))
            .into()
    }
}
