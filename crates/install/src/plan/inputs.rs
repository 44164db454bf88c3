//! The inputs of an entry: templates that contain them, and their JSON Schema.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Field, Format, Part, Plan, Template};
use crate::document::Input;

impl Plan {
    pub(super) fn template(&mut self, input: &Input, name: &str) -> Template {
        self.template_with(input, name, &BTreeMap::new())
    }

    /// `known`: fields that the value's placeholders may refer to, in addition to the input's own variables.
    pub(super) fn template_with(
        &mut self,
        input: &Input,
        name: &str,
        known: &BTreeMap<String, usize>,
    ) -> Template {
        let Some(value) = &input.value else {
            return vec![Part::Field(self.field(input, name))];
        };
        let mut template = Vec::new();
        let mut asked: BTreeMap<&str, usize> = BTreeMap::new();
        let mut rest = value.as_str();
        let mut text = String::new();
        while let Some((before, after)) = rest.split_once('{') {
            text.push_str(before);
            let variable = after.split_once('}').and_then(|(name, tail)| {
                let is_known = input.variables.contains_key(name) || known.contains_key(name);
                is_known.then_some((name, tail))
            });
            let Some((variable, tail)) = variable else {
                text.push('{');
                rest = after;
                continue;
            };
            rest = tail;
            match input.variables.get(variable) {
                Some(Input {
                    value: Some(fixed), ..
                }) => text.push_str(fixed),
                of => {
                    template.push(Part::Text(std::mem::take(&mut text)));
                    let field = match (asked.get(variable), of) {
                        (Some(field), _) => *field,
                        (None, Some(of)) => {
                            // If the whole value is secret or required, so are its variables.
                            let of = Input {
                                is_secret: of.is_secret || input.is_secret,
                                is_required: of.is_required || input.is_required,
                                ..of.clone()
                            };
                            self.field(&of, variable)
                        }
                        (None, None) => known[variable],
                    };
                    asked.insert(variable, field);
                    template.push(Part::Field(field));
                }
            }
        }
        text.push_str(rest);
        template.push(Part::Text(text));
        template.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        template
    }

    /// Adds a field and returns its index.
    pub(crate) fn field(&mut self, input: &Input, name: &str) -> usize {
        let is_taken = |name: &str| self.fields.iter().any(|field| field.name == name);
        let mut unique = name.to_owned();
        for number in 2.. {
            if !is_taken(&unique) {
                break;
            }
            unique = format!("{name}_{number}");
        }
        self.fields.push(Field {
            name: unique,
            description: input.description.clone(),
            is_required: input.is_required,
            is_secret: input.is_secret,
            format: match input.format.as_deref() {
                Some("number") => Format::Number,
                Some("boolean") => Format::Boolean,
                Some("filepath") => Format::Path,
                _ => Format::Text,
            },
            // The publisher must not decide which host paths the server sees.
            preset: input
                .preset
                .clone()
                .filter(|_| input.format.as_deref() != Some("filepath")),
            placeholder: input.placeholder.clone(),
            choices: input.choices.clone(),
            is_repeated: false,
            is_of_url: false,
        });
        self.fields.len() - 1
    }

    /// The fields as a JSON Schema.
    pub(super) fn inputs(&self) -> Value {
        let properties: Map<String, Value> = self
            .fields
            .iter()
            .map(|field| (field.name.clone(), field.schema()))
            .collect();
        let required: Vec<&str> = self
            .fields
            .iter()
            .filter(|field| field.is_required && field.preset.is_none())
            .map(|field| field.name.as_str())
            .collect();
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    }
}

impl Field {
    fn schema(&self) -> Value {
        let mut schema = Map::new();
        let kind = match self.format {
            Format::Number => "number",
            Format::Boolean => "boolean",
            Format::Text | Format::Path => "string",
        };
        schema.insert("type".into(), kind.into());
        match self.format {
            Format::Path => drop(schema.insert("format".into(), "path".into())),
            _ if self.is_secret => {
                schema.insert("format".into(), "password".into());
                schema.insert("writeOnly".into(), true.into());
            }
            _ => {}
        }
        if !self.choices.is_empty() {
            schema.insert("enum".into(), self.choices.clone().into());
        }
        if self.is_repeated {
            schema = Map::from_iter([
                ("type".to_owned(), "array".into()),
                ("items".to_owned(), schema.into()),
            ]);
        }
        if let Some(text) = &self.description {
            schema.insert("description".into(), text.as_str().into());
        }
        // A default value is public, so a secret has none.
        if let Some(preset) = self.preset.as_ref().filter(|_| !self.is_secret) {
            schema.insert("default".into(), self.typed(preset));
        }
        if let Some(example) = &self.placeholder {
            schema.insert("examples".into(), json!([example]));
        }
        schema.into()
    }

    fn typed(&self, preset: &str) -> Value {
        let plain = match self.format {
            Format::Number | Format::Boolean => {
                serde_json::from_str(preset).unwrap_or_else(|_| preset.into())
            }
            Format::Text | Format::Path => preset.into(),
        };
        if self.is_repeated {
            json!([plain])
        } else {
            plain
        }
    }
}
