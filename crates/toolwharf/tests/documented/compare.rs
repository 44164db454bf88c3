//! Compares the output on a page with the real one.
//!
//! On a page, `…` stands for any text, and a line of `…` for any lines. Values that differ between runs are equal:
//! times, durations, ids, tokens, versions, and numbers of five digits or more. The widths of columns are not compared.
//! Lines that depend on the machine or the date are left out: the limits that a sandbox enforces, the day of the week.

/// Returns whether the page's lines show this output.
pub(crate) fn shows(page: &[String], real: &str) -> bool {
    let lines = |text: &[String]| -> Vec<String> {
        let lines = text.iter().map(|line| canonical(line));
        lines
            .filter(|line| !line.is_empty() && !depends_on_machine(line))
            .collect()
    };
    let real: Vec<String> = real.lines().map(str::to_owned).collect();
    let (page, real) = (lines(page), lines(&real));
    // Long JSON is broken into lines on a page.
    if real.len() == 1 && page.len() > 1 && page[0].starts_with(['{', '[']) {
        return fits(&page.concat(), &real[0]);
    }
    all_fit(&page, &real)
}

/// Returns whether the output contains the page's lines in this order, with any lines between them.
pub(crate) fn includes(page: &[String], real: &str) -> bool {
    let gap = || "…".to_owned();
    let lines = page.iter().flat_map(|line| [gap(), line.clone()]);
    let lines: Vec<_> = lines.chain([gap()]).collect();
    shows(&lines, real)
}

/// Like [`includes`], for the output of `toolwharf serve` only, whose log continues.
pub(crate) fn includes_serving(page: &[String], real: &str) -> bool {
    real.contains("toolwharf is at ") && includes(page, real)
}

fn depends_on_machine(line: &str) -> bool {
    let of_sandbox = ["not enforced", "enforced", "because", "uses "];
    let of_today = ["\"day_of_week\"", "\"is_dst\""];
    [&of_sandbox[..], &of_today]
        .concat()
        .iter()
        .any(|start| line.starts_with(start))
}

fn all_fit(page: &[String], real: &[String]) -> bool {
    match page.split_first() {
        None => real.is_empty(),
        Some((first, rest)) if first == "…" => {
            (0..=real.len()).any(|skipped| all_fit(rest, &real[skipped..]))
        }
        Some((first, rest)) => real
            .split_first()
            .is_some_and(|(line, more)| fits(first, line) && all_fit(rest, more)),
    }
}

/// Returns whether the pattern, in which `…` stands for any text, matches the whole line.
fn fits(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

/// Replaces what differs between runs, and joins the words with single spaces.
fn canonical(line: &str) -> String {
    let is_unit = |word: &str| matches!(word, "s" | "ms" | "µs");
    let is_number = |word: &str| {
        word.bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    let words: Vec<_> = line.split_whitespace().collect();
    let canonical = words.iter().enumerate().map(|(index, text)| {
        let next = words.get(index + 1).copied().unwrap_or_default();
        match *text {
            unit if is_unit(unit) => "s".to_owned(),
            number if is_number(number) && is_unit(next) => "#".to_owned(),
            // The id of a process.
            number if index == 1 && words[0] == "process" && is_number(number) => "#".to_owned(),
            other => word(other),
        }
    });
    canonical.collect::<Vec<_>>().join(" ")
}

fn word(word: &str) -> String {
    if let Some(number) = word.strip_prefix("ms=") {
        return format!(
            "ms=#{}",
            number.trim_start_matches(|letter: char| letter.is_ascii_digit())
        );
    }
    let mut text = String::new();
    let mut run = String::new();
    let is_part = |letter: char| {
        letter.is_ascii_alphanumeric() || matches!(letter, '-' | ':' | '.' | '_' | '+')
    };
    for letter in word.chars().chain(['\0']) {
        if is_part(letter) {
            run.push(letter);
            continue;
        }
        if !run.is_empty() {
            text.push_str(&value(&std::mem::take(&mut run)));
        }
        if letter != '\0' {
            text.push(letter);
        }
    }
    text
}

/// Returns `#` for a value that differs between runs, with its punctuation.
fn value(run: &str) -> String {
    let core = run.trim_end_matches(['.', ':']);
    let end = &run[core.len()..];
    if varies(core) {
        return format!("#{end}");
    }
    // Parts between colons, such as a name with an id, or an address with a port.
    if let Some((first, rest)) = core.split_once(':') {
        return format!("{}:{}{end}", value(first), value(rest));
    }
    if core.starts_with("twh_") {
        return format!("twh_…{end}");
    }
    run.to_owned()
}

fn varies(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let only = |more: &str| {
        text.chars()
            .all(|letter| letter.is_ascii_digit() || more.contains(letter))
    };
    let is_hex = text.len() >= 4
        && digits > 0
        && digits < text.len()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let is_uuid = text.len() == 36 && text.bytes().filter(|byte| *byte == b'-').count() == 4;
    let is_time = digits >= 4
        && text.starts_with(|first: char| first.is_ascii_digit())
        && only("-:.+TZ")
        && !only("");
    let is_version = only(".") && text.matches('.').count() == 2;
    let is_duration = digits > 0
        && text.starts_with(|first: char| first.is_ascii_digit())
        && text.ends_with(['s', 'm', 'h', 'd'])
        && only(".smhd");
    let is_protocol = matches!(
        text,
        "2025-11-25" | "2025-06-18" | "2025-03-26" | "2024-11-05" | "2026-07-28"
    );
    let is_address = text.starts_with("127.0.0.");
    let is_long = digits >= 5 && only("");
    !is_protocol
        && !is_address
        && (is_hex || is_uuid || is_time || is_version || is_duration || is_long)
}

#[test]
fn what_differs_between_runs_is_equal() {
    let shown = |page: &str, real: &str| {
        let page: Vec<_> = page.lines().map(str::to_owned).collect();
        shows(&page, real)
    };
    for (page, real) in [
        ("a   b\nup 36s", "a b\nup 2m3s"),
        ("process  22983", "process 8122"),
        ("2026-11-22T01:55:19+01:00", "2027-01-02T03:04:05+02:00"),
        (
            "2026-11-22 04:17:19  01a20179-0a0b-750f-a231-8882d4ecebf1  24 ms",
            "2026-12-22 14:17:19 01b30179-0a0b-750f-a231-8882d4ecebf2 1.3 ms",
        ),
        ("key:01a20178…", "key:01b30179…"),
        ("{\"a\":1,…}", "{\"a\":1,\"b\":2}"),
        ("one\n…\nfour", "one\ntwo\nthree\nfour"),
        (
            "connected: 2 tools, 2025-11-25, under process\nnot enforced: kernel",
            "connected: 2 tools, 2025-11-25, under process",
        ),
        ("9000 at 127.0.0.2:18169", "9000 at 127.0.0.2:30000"),
        ("{\"a\":1,\n\"b\":2}", "{\"a\":1,\"b\":2}"),
        ("token: twh_…", "token: twh_abcdef"),
        (
            "mcp-server-time 2026.10.19 of pypi",
            "mcp-server-time 2026.12.1 of pypi",
        ),
    ] {
        assert!(shown(page, real), "{page}\n---\n{real}");
    }
    for (page, real) in [
        ("2 tools", "3 tools"),
        ("connected: 2025-11-25", "connected: 2026-07-28"),
        ("one\nthree", "one\ntwo\nthree"),
        ("one", "one\ntwo"),
        ("a … c", "a b d"),
    ] {
        assert!(!shown(page, real), "{page}\n---\n{real}");
    }
}
