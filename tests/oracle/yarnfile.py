"""What Hadoop's documentation says a service definition of YARN may hold, as JSON Schema.

Source: "YARN Service API" (hadoop-yarn-site, yarn-service/YarnServiceAPI.md), definitions Service, Component, Resource,
Configuration, ConfigFile; what is validated beyond them: ServiceApiUtil (validateNameFormat, validateComponent,
validateServiceResource): names, and that a component has a command, containers and a resource. Only what gradwire may
use is here: any other field is refused.
"""

from __future__ import annotations

from typing import Any

NAME = {"type": "string", "pattern": "^[a-z][a-z0-9-]*$", "maxLength": 63}
CONFIG_FILE = {
    "type": "object",
    "properties": {
        "type": {
            "enum": [
                "XML",
                "PROPERTIES",
                "JSON",
                "YAML",
                "TEMPLATE",
                "ENV",
                "HADOOP_XML",
                "STATIC",
                "ARCHIVE",
            ]
        },
        "dest_file": {"type": "string", "pattern": "^[^/]+$"},  # absolute ones are for Docker alone
        "properties": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "additionalProperties": False,
    "if": {"properties": {"type": {"const": "TEMPLATE"}}},
    "then": {"properties": {"properties": {"required": ["content"]}}},
}
COMPONENT = {
    "type": "object",
    "required": ["name", "launch_command", "number_of_containers", "resource"],
    "properties": {
        "name": NAME,
        "launch_command": {"type": "string"},
        "number_of_containers": {"type": "integer", "minimum": 0},
        "restart_policy": {"enum": ["ALWAYS", "ON_FAILURE", "NEVER"]},
        "resource": {
            "type": "object",
            "required": ["cpus", "memory"],
            "properties": {
                "cpus": {"type": "integer", "minimum": 1},
                "memory": {"type": "string", "pattern": "^[1-9][0-9]*$"},  # MB
            },
            "additionalProperties": False,
        },
        "configuration": {
            "type": "object",
            "properties": {
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "files": {"type": "array", "items": CONFIG_FILE},
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
SERVICE: dict[str, Any] = {
    "type": "object",
    "required": ["name", "version", "components"],
    "properties": {
        "name": NAME,
        "version": {"type": "string", "minLength": 1},
        "queue": {"type": "string"},
        "components": {"type": "array", "items": COMPONENT, "minItems": 1},
    },
    "additionalProperties": False,
}
