//! Rows of a table: an array of objects, or of other values. Rows are written as CSV, which repeats no keys.

use std::{borrow::Cow, ops::ControlFlow};

use crate::{
    bound::Bound,
    path::{Name, of_row, outline, shown, text_of, walk},
};

/// Rows of an answer, unless the caller asks for another number.
pub(crate) const USUAL_ROWS: usize = 100;
const MAX_ROWS: usize = 10_000;
/// Columns of an answer, unless the caller chooses them.
const MAX_COLUMNS: usize = 200;
/// The column of values that are no objects.
const VALUE: &str = "value";

/// `count` rows of the array `json` from the row `first`, with these columns, as many as the bound allows.
///
/// # Errors
/// The array, the row or a column does not exist.
pub(crate) fn rows(
    json: &str,
    first: usize,
    count: usize,
    columns: Option<&[String]>,
    bound: Bound,
) -> Result<String, String> {
    if !json.starts_with('[') {
        return Err(format!(
            "this is no table, but {}: name the path of an array",
            outline(json)
        ));
    }
    let wanted = first..first.saturating_add(count.clamp(1, MAX_ROWS));
    let (mut total, mut rows) = (0, Vec::new());
    walk(json, |name, value| {
        if let Name::Index(at) = name {
            total = at + 1;
            if wanted.contains(&at) {
                rows.push(value);
            }
        }
        ControlFlow::Continue(())
    });
    if rows.is_empty() {
        return Err(format!(
            "there are {total} rows, so there is no row {first}"
        ));
    }
    let there = columns_of(&rows);
    let columns: Vec<&str> = match columns.filter(|columns| !columns.is_empty()) {
        Some(chosen) => {
            for column in chosen {
                let is_there = |row: &&str| of_row(row, column).is_some();
                if !rows.iter().any(is_there) && column != VALUE {
                    let there = there.iter().map(|one| shown(one)).collect::<Vec<_>>();
                    return Err(format!(
                        "no row has the column `{}`; there are: {}",
                        shown(column),
                        shown_list(&there)
                    ));
                }
            }
            chosen
                .iter()
                .take(MAX_COLUMNS)
                .map(String::as_str)
                .collect()
        }
        None => there.iter().map(|one| &**one).collect(),
    };
    let longest = format!("rows {total} to {total} of {total}; to read on, use row {total}");
    let mut room = bound.beside(&longest);
    let mut text = line(columns.iter().map(|column| Cow::Borrowed(*column)));
    let has_header = room.take(&text);
    let mut written = 0;
    for row in &rows {
        let cells = columns.iter().map(|column| cell(row, column));
        let line = line(cells);
        if !has_header || !room.take(&line) {
            break;
        }
        text.push_str(&line);
        written += 1;
    }
    if written == 0 {
        return Err(format!(
            "the row {first} is longer than one answer: choose `columns`, or read the path of one value"
        ));
    }
    let next = first + written;
    let rest = match next < total {
        true => format!("to read on, use row {next}"),
        false => "this is the end".to_owned(),
    };
    let last = next - 1;
    text.push_str(&format!("\n[rows {first} to {last} of {total}; {rest}]"));
    Ok(text)
}

/// The keys of all rows, in the order of their first appearance.
fn columns_of<'t>(rows: &[&'t str]) -> Vec<Cow<'t, str>> {
    let mut columns: Vec<Cow<'t, str>> = Vec::new();
    for row in rows {
        if !row.starts_with('{') {
            if !columns.iter().any(|known| known == VALUE) {
                columns.push(VALUE.into());
            }
            continue;
        }
        let mut at = 0;
        walk(row, |name, _| {
            if let Name::Key(key) = name {
                // Rows usually have the same keys in the same order.
                let is_known = columns.get(at) == Some(&key) || columns.contains(&key);
                if !is_known {
                    columns.push(key);
                }
                at += 1;
            }
            match columns.len() < MAX_COLUMNS {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        if columns.len() >= MAX_COLUMNS {
            break;
        }
    }
    columns
}

fn shown_list(names: &[String]) -> String {
    match names.len() {
        0..=20 => names.join(", "),
        more => format!("{} and {} more", names[..20].join(", "), more - 20),
    }
}

fn cell<'t>(row: &'t str, column: &str) -> Cow<'t, str> {
    let value = match row.starts_with('{') || column != VALUE {
        true => of_row(row, column),
        false => Some(row),
    };
    match value {
        None | Some("null") => "".into(),
        Some(value) => text_of(value),
    }
}

/// A line of CSV.
pub(crate) fn line<'c>(cells: impl Iterator<Item = Cow<'c, str>>) -> String {
    let mut line = String::new();
    for (at, cell) in cells.enumerate() {
        if at > 0 {
            line.push(',');
        }
        let is_plain = !cell.contains(['"', ',', '\n', '\r']) && cell.trim().len() == cell.len();
        match is_plain {
            true => line.push_str(&cell),
            false => {
                line.push('"');
                line.push_str(&cell.replace('"', "\"\""));
                line.push('"');
            }
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"[{"id":1,"name":"a, b","by":{"login":"x"}},{"id":2,"name":"say \"hi\"","by":null},{"id":3,"more":[1,2]},7]"#;

    fn check(first: usize, count: usize, columns: &[&str], expect: &str) {
        let columns: Vec<String> = columns.iter().map(|&one| one.to_owned()).collect();
        let columns = (!columns.is_empty()).then_some(&*columns);
        let read = rows(TABLE, first, count, columns, Bound::Tokens(1_000));
        assert_eq!(read.as_deref(), Ok(expect));
    }

    #[test]
    fn rows_are_lines_of_csv() {
        check(
            0,
            2,
            &[],
            "id,name,by\n1,\"a, b\",\"{\"\"login\"\":\"\"x\"\"}\"\n2,\"say \"\"hi\"\"\",\n\n[rows 0 to 1 of 4; to read on, use row 2]",
        );
        check(
            0,
            1,
            &["by.login", "id"],
            "by.login,id\nx,1\n\n[rows 0 to 0 of 4; to read on, use row 1]",
        );
        check(
            2,
            99,
            &[],
            "id,more,value\n3,\"[1,2]\",\n,,7\n\n[rows 2 to 3 of 4; this is the end]",
        );
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let chosen = ["none".to_owned()];
        let bound = Bound::Tokens(1_000);
        for (error, why) in [
            (
                rows(TABLE, 4, 1, None, bound),
                "there are 4 rows, so there is no row 4",
            ),
            (rows("[]", 0, 1, None, bound), "there are 0 rows"),
            (
                rows(TABLE, usize::MAX, usize::MAX, None, bound),
                "there is no row",
            ),
            (
                rows(r#"{"items":[1]}"#, 0, 1, None, bound),
                "an object with `items` (array of 1): name the path of an array",
            ),
            (
                rows(TABLE, 0, 1, Some(&chosen), bound),
                "no row has the column `none`; there are: id, name, by",
            ),
            (
                rows(TABLE, 0, 1, None, Bound::Tokens(20)),
                "the row 0 is longer than one answer",
            ),
        ] {
            let error = error.expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_long_table_is_read_in_parts() {
        let all: Vec<String> = (0..3_000)
            .map(|n| format!(r#"{{"id":{n},"name":"row {n}"}}"#))
            .collect();
        let table = format!("[{}]", all.join(","));
        let bound = Bound::Tokens(500);
        let (mut next, mut seen) = (0, 0);
        while next < 3_000 {
            let part = rows(&table, next, usize::MAX, None, bound).expect("rows");
            assert!(bound.fits(&part), "{part}");
            assert!(part.contains(&format!("\n{next},row {next}\n")), "{part}");
            seen += part.matches(",row ").count();
            next = match part.rsplit_once("use row ") {
                Some((_, next)) => next.trim_end_matches(']').parse().expect("a number"),
                None => 3_000,
            };
        }
        assert_eq!(seen, 3_000);
    }
}
