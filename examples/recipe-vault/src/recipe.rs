//! A recipe, and the limits of its fields.
//!
//! The field comments are part of the tools' schemas, so a model reads them. Data from a model is checked nevertheless, and
//! an error says what to write instead.

use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

const MAX_TITLE_CHARS: usize = 200;
const MAX_LINE_CHARS: usize = 2_000;
const MAX_NOTES_CHARS: usize = 10_000;
const MAX_LINES: usize = 200;
const MAX_TAGS: usize = 20;
const MAX_TAG_CHARS: usize = 50;
/// A week, in minutes: some doughs take days.
const MAX_MINUTES: u32 = 7 * 24 * 60;
const MAX_SERVINGS: u32 = 1_000;

/// A recipe without its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recipe {
    /// The name of the dish. At most 200 characters.
    pub(crate) title: String,
    /// One ingredient per entry, with the amount in the source: `250 g flour`.
    pub(crate) ingredients: Vec<String>,
    /// The instructions, one step per entry, in order.
    pub(crate) steps: Vec<String>,
    /// The number of people it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) servings: Option<u32>,
    /// Preparation time in minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prep_minutes: Option<u32>,
    /// Cooking or baking time in minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cook_minutes: Option<u32>,
    /// The source of the recipe: an http or https URL. Each URL belongs to at most one recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source_url: Option<String>,
    /// Words for finding it, such as `soup` or `vegan`. At most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<String>,
    /// Anything else worth storing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) notes: Option<String>,
}

/// Changes to a recipe. Omitted fields stay unchanged.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Changes {
    /// The recipe's id, from `create_recipe` or `list_recipes`.
    pub(crate) id: i64,
    pub(crate) title: Option<String>,
    /// The complete new list.
    pub(crate) ingredients: Option<Vec<String>>,
    /// The complete new list.
    pub(crate) steps: Option<Vec<String>>,
    pub(crate) servings: Option<u32>,
    pub(crate) prep_minutes: Option<u32>,
    pub(crate) cook_minutes: Option<u32>,
    pub(crate) source_url: Option<String>,
    /// The complete new list.
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) notes: Option<String>,
}

impl Recipe {
    /// Normalises the texts and checks all fields.
    ///
    /// # Errors
    ///
    /// A list of everything that is wrong.
    pub(crate) fn checked(mut self) -> Result<Self, String> {
        let mut wrong = Vec::new();
        tidy(&mut self.title);
        length(&mut wrong, "title", &self.title, MAX_TITLE_CHARS);
        for (what, lines) in [
            ("ingredients", &mut self.ingredients),
            ("steps", &mut self.steps),
        ] {
            lines.iter_mut().for_each(tidy);
            lines.retain(|line| !line.is_empty());
            if lines.is_empty() {
                wrong.push(format!("`{what}` is empty: give at least one entry"));
            }
            if lines.len() > MAX_LINES {
                wrong.push(format!(
                    "`{what}` has {} entries; at most {MAX_LINES} are allowed",
                    lines.len()
                ));
            }
            for line in lines.iter() {
                length(&mut wrong, what, line, MAX_LINE_CHARS);
            }
        }
        self.tags.iter_mut().for_each(|tag| {
            tidy(tag);
            *tag = tag.to_lowercase();
        });
        self.tags.retain(|tag| !tag.is_empty());
        self.tags.sort_unstable();
        self.tags.dedup();
        if self.tags.len() > MAX_TAGS {
            wrong.push(format!(
                "there are {} tags; at most {MAX_TAGS} are allowed",
                self.tags.len()
            ));
        }
        for tag in &self.tags {
            length(&mut wrong, "tags", tag, MAX_TAG_CHARS);
        }
        self.notes = self.notes.take().filter(|notes| !notes.trim().is_empty());
        if let Some(notes) = &self.notes {
            length(&mut wrong, "notes", notes, MAX_NOTES_CHARS);
        }
        for (what, number, most) in [
            ("servings", self.servings, MAX_SERVINGS),
            ("prep_minutes", self.prep_minutes, MAX_MINUTES),
            ("cook_minutes", self.cook_minutes, MAX_MINUTES),
        ] {
            if let Some(number) = number.filter(|number| *number > most) {
                wrong.push(format!("`{what}` is {number}; at most {most} is allowed"));
            }
        }
        if self.servings == Some(0) {
            wrong.push("`servings` must be at least 1; leave it out if it is not known".to_owned());
        }
        if let Some(source) = self.source_url.take() {
            match Url::parse(source.trim()) {
                Ok(url)
                    if matches!(url.scheme(), "http" | "https")
                        && source.len() <= MAX_LINE_CHARS =>
                {
                    self.source_url = Some(url.into());
                }
                _ => wrong.push(format!(
                    "`source_url` must be an http or https URL, not {:?}; leave it out if there is none",
                    source.chars().take(100).collect::<String>()
                )),
            }
        }
        match wrong.is_empty() {
            true => Ok(self),
            false => Err(format!("nothing was stored: {}", wrong.join("; "))),
        }
    }

    pub(crate) fn changed(mut self, changes: Changes) -> Self {
        let Changes {
            id: _,
            title,
            ingredients,
            steps,
            servings,
            prep_minutes,
            cook_minutes,
            source_url,
            tags,
            notes,
        } = changes;
        self.title = title.unwrap_or(self.title);
        self.ingredients = ingredients.unwrap_or(self.ingredients);
        self.steps = steps.unwrap_or(self.steps);
        self.tags = tags.unwrap_or(self.tags);
        self.servings = servings.or(self.servings);
        self.prep_minutes = prep_minutes.or(self.prep_minutes);
        self.cook_minutes = cook_minutes.or(self.cook_minutes);
        self.source_url = source_url.or(self.source_url);
        self.notes = notes.or(self.notes);
        self
    }
}

/// Replaces runs of white space with one space. Web pages contain unusual spaces and line ends.
fn tidy(text: &mut String) {
    *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
}

fn length(wrong: &mut Vec<String>, what: &str, text: &str, most: usize) {
    let found = text.chars().count();
    if found > most {
        wrong.push(format!(
            "an entry of `{what}` has {found} characters; at most {most} are allowed"
        ));
    }
    if found == 0 {
        wrong.push(format!("`{what}` is empty"));
    }
    if text.contains('\0') {
        wrong.push(format!("`{what}` contains the character U+0000"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soup() -> Recipe {
        Recipe {
            title: "Leek  soup\n".to_owned(),
            ingredients: vec!["3 leeks".to_owned(), " ".to_owned()],
            steps: vec!["Cut.\u{a0} Cook.".to_owned()],
            servings: Some(4),
            prep_minutes: None,
            cook_minutes: Some(30),
            source_url: Some("https://example.org/soup".to_owned()),
            tags: vec!["Soup".to_owned(), "soup ".to_owned()],
            notes: Some(" ".to_owned()),
        }
    }

    #[test]
    fn texts_are_tidied_up() {
        let soup = soup().checked().unwrap();
        assert_eq!(soup.title, "Leek soup");
        assert_eq!(soup.ingredients, ["3 leeks"]);
        assert_eq!(soup.steps, ["Cut. Cook."]);
        assert_eq!(soup.tags, ["soup"]);
        assert_eq!(soup.notes, None);
    }

    #[test]
    fn what_is_wrong_is_told_all_at_once() {
        let wrong = Recipe {
            title: " ".to_owned(),
            ingredients: Vec::new(),
            servings: Some(0),
            cook_minutes: Some(MAX_MINUTES + 1),
            source_url: Some("file:///etc/passwd".to_owned()),
            steps: vec!["x".repeat(MAX_LINE_CHARS + 1)],
            ..soup()
        };
        let error = wrong.checked().unwrap_err();
        for part in [
            "`title`",
            "`ingredients`",
            "`servings`",
            "`cook_minutes`",
            "`source_url`",
            "`steps`",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn a_change_leaves_the_rest() {
        let changes = Changes {
            servings: Some(2),
            tags: Some(Vec::new()),
            ..Changes::default()
        };
        let before = soup();
        let after = before.clone().changed(changes);
        assert_eq!(after.servings, Some(2));
        assert_eq!(after.tags, [] as [String; 0]);
        assert_eq!(after.title, before.title);
        assert_eq!(after.steps, before.steps);
    }
}
