//! Native tools, which this process carries out itself. `[agent] native` lists their names.

use agent::{NativeOutcome, NativeTool};
use serde_json::json;

const DISPLAY_RECIPE: &str = "display_recipe";

/// The tools with these names. Unknown names are skipped.
pub(super) fn chosen<'n>(names: impl IntoIterator<Item = &'n String>) -> Vec<NativeTool> {
    let chosen = names.into_iter().filter(|name| *name == DISPLAY_RECIPE);
    chosen.map(|_| display_recipe()).collect()
}

/// Shows a recipe to the user. The client gets its data unchanged, and draws a card.
fn display_recipe() -> NativeTool {
    let lines = json!({ "type": "array", "items": { "type": "string", "maxLength": 2000 }, "maxItems": 200 });
    let schema = json!({
        "type": "object",
        "properties": {
            "id": { "type": "integer", "description": "The recipe's id, if the recipe is stored." },
            "title": { "type": "string", "minLength": 1, "maxLength": 200 },
            "ingredients": lines,
            "steps": lines,
            "servings": { "type": "integer", "minimum": 1 },
            "prep_minutes": { "type": "integer", "minimum": 0 },
            "cook_minutes": { "type": "integer", "minimum": 0 },
            "source_url": { "type": "string", "maxLength": 2000 },
            "tags": { "type": "array", "items": { "type": "string" }, "maxItems": 20 },
            "notes": { "type": "string", "maxLength": 10000 },
        },
        "required": ["title", "ingredients", "steps"],
        "additionalProperties": false,
    });
    NativeTool::new(
        DISPLAY_RECIPE,
        "Shows a recipe to the user as a card. Call this tool instead of writing a recipe as text.",
        schema,
        async |recipe| {
            Ok(NativeOutcome::text("The recipe is shown to the user.").with_payload(recipe))
        },
    )
}
