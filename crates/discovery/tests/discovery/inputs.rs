//! Odd queries and odd tools.

use discovery::{
    Hit, Part, Past, Query, Segment, Server, Tier, Tool, Vector, query_words, search, signature,
    tokens,
};
use proptest::prelude::*;

fn segment(server: &str, tools: &[(&str, &str)]) -> Segment {
    let tools: Vec<Tool<'_>> = tools
        .iter()
        .map(|(name, description)| Tool {
            name,
            description: Some(description),
            ..Tool::default()
        })
        .collect();
    Segment::new(
        &Server {
            name: server,
            ..Server::default()
        },
        &tools,
    )
}

const TOOLS: &[(&str, &str)] = &[
    ("get_weather", "Weather forecast for a city"),
    ("send_mail", "Sends an e-mail to a person"),
    ("list_files", "Lists files of a folder"),
    ("weather_map", "A map of rain and wind"),
];

fn names() -> Vec<Option<&'static str>> {
    TOOLS.iter().map(|(name, _)| Some(*name)).collect()
}

fn found(query: &str) -> Vec<Hit> {
    let (segment, names) = (segment("things", TOOLS), names());
    search(&[Part::new(&segment, &names)], &Query::new(query), 10)
}

#[test]
fn queries_without_words_find_nothing() {
    for query in ["", " \n\t ", "\0", "?!&|()*\"'", "the of and", "\u{202e}"] {
        assert_eq!(found(query), [], "{query:?}");
    }
}

#[test]
fn operators_are_separators() {
    for query in [
        "+weather -forecast",
        "weather AND (forecast)",
        "\"weather\" ~2 forecast^3",
        "name:weather || forecast*",
    ] {
        assert_eq!(found(query)[0].tool, 0, "{query}");
    }
}

#[test]
fn a_query_of_a_megabyte_is_cut() {
    let long = "forecast ".repeat(1 << 17);
    assert_eq!(found(&long)[0].tool, 0);
    // Different words, more than are read.
    let mut long: String = (0..200_000)
        .map(|number| format!("word{number} "))
        .collect();
    assert_eq!(found(&long), []);
    long.insert_str(0, "weather ");
    assert_eq!(found(&long).len(), 2);
    assert_eq!(found(&"天".repeat(400_000)), []);
    assert_eq!(found(&"x".repeat(1 << 20)), []);
}

#[test]
fn chinese_is_found_by_pairs_of_characters() {
    let tools = [
        ("tianqi", "查询城市的天气预报"),
        ("youjian", "发送电子邮件"),
    ];
    let segment = segment("zh", &tools);
    let names = [Some("tianqi"), Some("youjian")];
    for (query, expect) in [("明天的天气怎么样?", 0), ("给他发邮件", 1)] {
        let hits = search(&[Part::new(&segment, &names)], &Query::new(query), 10);
        assert_eq!(
            hits.iter().map(|hit| hit.tool).collect::<Vec<_>>(),
            [expect],
            "{query}"
        );
    }
}

#[test]
fn tiers_come_in_order() {
    let tiers = |query| -> Vec<(Tier, usize)> {
        found(query)
            .iter()
            .map(|hit| (hit.tier, hit.tool))
            .collect()
    };
    assert_eq!(
        tiers("get_weather")[..2],
        [(Tier::Exposed, 0), (Tier::Relevance, 3)]
    );
    assert_eq!(tiers("Get Weather")[0], (Tier::Spelling, 0));
    assert_eq!(
        tiers("weather")[..2],
        [(Tier::Prefix, 3), (Tier::Relevance, 0)]
    );
    assert_eq!(tiers("lst_files")[0], (Tier::Typo, 2));
    assert_eq!(
        tiers("a map of the wind"),
        [(Tier::Relevance, 3), (Tier::Relevance, 0)]
    );
}

#[test]
fn hidden_tools_have_no_influence() {
    let all = segment("things", TOOLS);
    let visible: Vec<_> = TOOLS
        .iter()
        .filter(|(name, _)| *name != "get_weather")
        .copied()
        .collect();
    let few = segment("things", &visible);
    let mut names = names();
    names[0] = None;
    let few_names: Vec<_> = names
        .iter()
        .filter(|name| name.is_some())
        .copied()
        .collect();
    for query in [
        "weather",
        "get_weather",
        "files of the weather",
        "things",
        "e-mail",
    ] {
        let with = search(&[Part::new(&all, &names)], &Query::new(query), 10);
        let without = search(&[Part::new(&few, &few_names)], &Query::new(query), 10);
        let scores = |hits: &[Hit]| {
            hits.iter()
                .map(|hit| (hit.tier, hit.score))
                .collect::<Vec<_>>()
        };
        assert!(with.iter().all(|hit| hit.tool != 0), "{query}");
        assert_eq!(scores(&with), scores(&without), "{query}");
    }
    // Tools without an element are hidden.
    assert_eq!(
        search(&[Part::new(&all, &[])], &Query::new("weather"), 10),
        []
    );
}

#[test]
fn equal_tools_are_found_in_their_order() {
    let names: Vec<String> = (0..5000).map(|number| format!("tool{number}")).collect();
    let tools: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), "Does the same as all others"))
        .collect();
    let segment = segment("same", &tools);
    let exposed: Vec<_> = names.iter().map(|name| Some(name.as_str())).collect();
    let part = Part::new(&segment, &exposed);
    let hits = search(&[part], &Query::new("does something for others"), 20);
    assert_eq!(
        hits.iter().map(|hit| hit.tool).collect::<Vec<_>>(),
        (0..20).collect::<Vec<_>>()
    );
    assert!(hits[0].score > 0.0);
    assert_eq!(search(&[part], &Query::new("tool4711"), 1)[0].tool, 4711);
    assert_eq!(search(&[part], &Query::new("others"), 0), []);
    assert_eq!(
        search(&[part], &Query::new("others"), usize::MAX).len(),
        5000
    );
}

#[test]
fn the_words_of_a_server_find_all_its_tools() {
    let (first, second) = (
        segment("github", &[("issue_create", ""), ("issue_close", "")]),
        segment("gitlab", TOOLS),
    );
    let (a, b) = ([Some("a"), Some("b")], names());
    let hits = search(
        &[Part::new(&second, &b), Part::new(&first, &a)],
        &Query::new("close it on github"),
        10,
    );
    assert_eq!(
        hits.iter()
            .map(|hit| (hit.part, hit.tool))
            .collect::<Vec<_>>(),
        [(1, 1), (1, 0)]
    );
    assert!(hits[1].fields.server > 0.0 && hits[1].fields.name == 0.0);
    assert!(hits[0].fields.name > hits[0].fields.server);
}

#[test]
fn a_huge_tool_takes_at_most_4_kilobytes() {
    let text: String = (0..100_000)
        .map(|number| format!("word{number} "))
        .collect();
    let schema = format!(r#"{{"properties":{{"a":{{"description":"{text}"}}}}}}"#);
    let tool = Tool {
        name: &text,
        title: Some(&text),
        description: Some(&text),
        input_schema: Some(schema.as_bytes()),
        annotations: Some(schema.as_bytes()),
    };
    let server = Server {
        name: &text,
        description: Some(&text),
        instructions: Some(&text),
    };
    for number in [1, 2, 10] {
        let bytes = Segment::new(&server, &vec![tool; number]).bytes();
        assert!(bytes <= 4096 * (number + 1), "{bytes} for {number}");
    }
    assert!(Segment::new(&server, &[]).is_empty());
}

#[test]
fn scores_of_fields_add_up() {
    for hit in found("the weather forecast of a city, with wind") {
        let fields = hit.fields;
        let sum = fields.name
            + fields.description
            + fields.parameters
            + fields.parameter_text
            + fields.server
            + fields.past;
        assert!((sum - hit.score).abs() < 0.02 * hit.score, "{hit:?}");
    }
}

/// Counts words of a query as words that led to the tools.
fn past(tools: &[usize], query: &str, count: f32) -> Past {
    let words = query_words(query);
    Past::new(
        tools
            .iter()
            .flat_map(|tool| words.iter().map(move |word| (*tool, *word, count))),
    )
}

#[test]
fn earlier_searches_lift_tools() {
    let (segment, mut names) = (segment("things", TOOLS), names());
    let hits = |names: &[Option<&str>], past: &Past, query: &str| {
        let part = Part::new(&segment, names).with_past(Some(past));
        search(&[part], &Query::new(query), 10)
    };
    let found = |names: &[Option<&str>], past: &Past, query: &str| -> Vec<usize> {
        hits(names, past, query)
            .iter()
            .map(|hit| hit.tool)
            .collect()
    };
    let (none, twice) = (past(&[], "", 1.0), past(&[3, 1], "zorp", 2.0));
    assert_eq!(found(&names, &none, "zorp"), [0; 0]);
    assert_eq!(found(&names, &twice, "zorp"), [1, 3]);
    assert_eq!(found(&names, &none, "weather zorp")[0], 0);
    let often = past(&[3], "zorp", 100.0);
    assert_eq!(found(&names, &often, "weather zorp")[0], 3);
    for hit in hits(&names, &often, "weather zorp") {
        let fields = hit.fields;
        assert_eq!(fields.past > 0.0, hit.tool == 3, "{hit:?}");
        let sum = fields.name + fields.description + fields.past;
        assert!((sum - hit.score).abs() < 0.02 * hit.score, "{hit:?}");
    }
    // Words that lead to hidden tools have no effect, not even on the weights of words.
    names[1] = None;
    let (two, one) = (past(&[1, 3], "zorp", 5.0), past(&[3], "zorp", 5.0));
    assert_eq!(hits(&names, &two, "zorp"), hits(&names, &one, "zorp"));
    // Numbers of an older list.
    let old = past(&[3, 4, 1_000_000], "zorp", 5.0);
    assert_eq!(hits(&names, &old, "zorp"), hits(&names, &one, "zorp"));
    names.truncate(2);
    assert_eq!(found(&names, &old, "zorp"), [0; 0]);
}

#[test]
fn vectors_find_what_has_no_word_in_common() {
    let (segment, mut names) = (segment("things", TOOLS), names());
    let vectors =
        [[0.0, 1.0], [1.0, 0.0], [0.9, 0.1], [0.0, 1.0]].map(|numbers| Vector::new(&numbers));
    let of_query = [Vector::new(&[1.0, 0.0])];
    let found = |names: &[Option<&str>], vectors: &[Vector], query: &str| -> Vec<usize> {
        let part = Part::new(&segment, names).with_vectors(vectors);
        let hits = search(&[part], &Query::new(query).with_vectors(&of_query), 10);
        hits.iter().map(|hit| hit.tool).collect()
    };
    assert_eq!(found(&names, &vectors, "qqqqq"), [1, 2]);
    assert_eq!(found(&names, &vectors, "send_mail")[0], 1);
    assert_eq!(found(&names, &vectors, "get_weather")[0], 0);
    // Without a vector for each tool, and without words.
    assert_eq!(found(&names, &vectors[..2], "qqqqq"), [1]);
    assert_eq!(found(&names, &[], "weather").len(), 2);
    assert_eq!(found(&names, &vectors, "?!"), [0; 0]);
    names[1] = None;
    assert_eq!(found(&names, &vectors, "qqqqq"), [2]);
}

#[test]
fn a_tool_that_is_similar_to_one_clause_is_found() {
    let (segment, names) = (segment("things", TOOLS), names());
    let vectors =
        [[0.0, 1.0], [1.0, 0.0], [0.9, 0.1], [0.0, -1.0]].map(|numbers| Vector::new(&numbers));
    let part = [Part::new(&segment, &names).with_vectors(&vectors)];
    let clauses = [[0.7, 0.7], [0.0, 1.0], [1.0, 0.0]].map(|numbers| Vector::new(&numbers));
    let hits = search(&part, &Query::new("qqqqq").with_vectors(&clauses), 10);
    let found: Vec<usize> = hits.iter().map(|hit| hit.tool).collect();
    assert_eq!(found, [0, 1, 2]);
    assert!((hits[0].similarity.unwrap_or_default() - 1.0).abs() < 0.01);
}

#[test]
fn related_words_count_less_beside_meanings() {
    let tools = [("a", "picture"), ("b", "images, photos, images, photos")];
    let (segment, names) = (segment("things", &tools), [Some("a"), Some("b")]);
    let vectors = [[0.0, 1.0]; 2].map(|numbers| Vector::new(&numbers));
    let part = Part::new(&segment, &names);
    let share = |part, query| {
        let mut hits = search(&[part], query, 2);
        hits.sort_by_key(|hit| hit.tool);
        hits[1].fields.description / hits[0].fields.description
    };
    let query = Query::new("picture");
    let alone = share(part, &query);
    let beside = share(
        part.with_vectors(&vectors),
        &query.with_vectors(&vectors[..1]),
    );
    assert!(beside > 0.0 && beside < 0.8 * alone, "{beside} {alone}");
}

proptest! {
    #[test]
    fn no_input_panics(
        query in any::<String>(),
        name in any::<String>(),
        description in any::<String>(),
        json in proptest::collection::vec(any::<u8>(), 0..200),
        limit in 0..5_usize,
    ) {
        let tools = [
            Tool { name: &name, description: Some(&description), input_schema: Some(&json), annotations: Some(&json), title: None },
            Tool { name: &query, title: Some(&query), ..Tool::default() },
        ];
        let segment = Segment::new(&Server { name: &name, description: Some(&query), instructions: None }, &tools);
        let names = [Some(name.as_str()), Some(query.as_str())];
        let hits = search(&[Part::new(&segment, &names)], &Query::new(&query), limit);
        prop_assert!(hits.len() <= limit);
        prop_assert!(hits.iter().all(|hit| hit.score.is_finite()));
        signature(&name, &json);
        signature(&name, query.as_bytes());
        prop_assert!(tokens(&json) <= json.len());
    }
}
