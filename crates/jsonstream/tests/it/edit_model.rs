//! Edits on text against a model: the same edits by plain recursion over [`serde_json::Value`].

use jsonstream::{Limits, apply, check, parse_edit};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const LIMITS: Limits = Limits { bytes_max: 1 << 20 };

#[derive(Clone, Debug)]
enum Step {
    Name(&'static str),
    Index(usize),
    FromEnd(usize),
    Append,
}

#[derive(Clone, Debug)]
enum Action {
    Set(Value),
    Add(i64),
    Remove,
}

#[derive(Clone, Debug)]
struct Change {
    path: Vec<Step>,
    action: Action,
}

/// The model refuses the edit.
#[derive(Debug)]
struct Refused;

impl Change {
    fn text(&self) -> String {
        let mut path = String::new();
        for step in &self.path {
            match step {
                Step::Name(name) => path.extend([if path.is_empty() { "" } else { "." }, name]),
                Step::Index(index) => path.extend(["[", &index.to_string(), "]"]),
                Step::FromEnd(back) => path.extend(["[-", &back.to_string(), "]"]),
                Step::Append => path += "[+]",
            }
        }
        match &self.action {
            Action::Set(value) => format!("{path}:={value}"),
            Action::Add(1) => format!("{path}++"),
            Action::Add(-1) => format!("{path}--"),
            Action::Add(number) => format!("{path}={number:+}"),
            Action::Remove => format!("rm:{path}"),
        }
    }

    fn model(&self, value: &mut Value) -> Result<(), Refused> {
        match &self.action {
            Action::Set(new) => set(value, &self.path, new),
            Action::Add(number) => {
                let before =
                    get(value, &self.path)?.map_or(Some(0), |value| value.as_i64()).ok_or(Refused)?;
                set(value, &self.path, &json!(before + number))
            }
            Action::Remove => remove(value, &self.path),
        }
    }
}

fn object(value: &mut Value) -> Result<&mut Map<String, Value>, Refused> {
    value.as_object_mut().ok_or(Refused)
}

fn array(value: &mut Value) -> Result<&mut Vec<Value>, Refused> {
    value.as_array_mut().ok_or(Refused)
}

fn place(array: &[Value], step: &Step) -> Result<usize, Refused> {
    match step {
        Step::Index(index) if *index < array.len() => Ok(*index),
        Step::FromEnd(back) => array.len().checked_sub(*back).ok_or(Refused),
        _ => Err(Refused),
    }
}

fn get<'a>(value: &'a mut Value, path: &[Step]) -> Result<Option<&'a mut Value>, Refused> {
    let Some((step, rest)) = path.split_first() else { return Ok(Some(value)) };
    let inner = match step {
        Step::Name(name) => object(value)?.get_mut(*name),
        Step::Append => array(value).map(|_| None)?,
        _ => {
            let array = array(value)?;
            let place = place(array, step)?;
            Some(&mut array[place])
        }
    };
    inner.map_or(Ok(None), |inner| get(inner, rest))
}

fn set(value: &mut Value, path: &[Step], new: &Value) -> Result<(), Refused> {
    let Some((step, rest)) = path.split_first() else {
        *value = new.clone();
        return Ok(());
    };
    match step {
        Step::Name(name) if object(value)?.contains_key(*name) => set(&mut value[*name], rest, new),
        Step::Name(name) => {
            let built = built(rest, new)?;
            object(value)?.insert((*name).to_owned(), built);
            Ok(())
        }
        Step::Append => {
            let array = array(value)?;
            array.push(built(rest, new)?);
            Ok(())
        }
        _ => {
            let array = array(value)?;
            let place = place(array, step)?;
            set(&mut array[place], rest, new)
        }
    }
}

fn built(path: &[Step], new: &Value) -> Result<Value, Refused> {
    match path.split_first() {
        None => Ok(new.clone()),
        Some((Step::Name(name), rest)) => Ok(json!({ *name: built(rest, new)? })),
        Some((Step::Append, rest)) => Ok(json!([built(rest, new)?])),
        Some(_) => Err(Refused),
    }
}

fn remove(value: &mut Value, path: &[Step]) -> Result<(), Refused> {
    let (last, parents) = path.split_last().expect("a path");
    let Some(container) = get(value, parents)? else { return Ok(()) };
    if let Step::Name(name) = last {
        object(container)?.remove(*name);
    } else {
        let array = array(container)?;
        array.remove(place(array, last)?);
    }
    Ok(())
}

const NAMES: [&str; 4] = ["a", "b", "key", "é"];

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(NAMES.to_vec())
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => (-100..100_i64).prop_map(Value::from),
        1 => "[a-z\"\\\\{}\\[\\],:é ]{0,8}".prop_map(Value::from),
        1 => prop_oneof![Just(json!(true)), Just(json!(null)), Just(json!({})), Just(json!([]))],
    ]
}

/// A key with its quotes, sometimes with an escape in it.
fn key() -> impl Strategy<Value = String> {
    (name(), any::<bool>()).prop_map(|(name, escaped)| match (name, escaped) {
        ("a", true) => r#""\u0061""#.to_owned(),
        ("é", true) => r#""\u00E9""#.to_owned(),
        _ => format!("\"{name}\""),
    })
}

/// A document with random whitespace, duplicate keys and keys with escapes.
fn document() -> impl Strategy<Value = String> {
    let space = || prop_oneof![3 => Just(""), 1 => Just(" "), 1 => Just("\r\n\t")];
    let value = leaf().prop_map(|value| value.to_string()).prop_recursive(4, 30, 4, move |inner| {
        let element = (space(), inner.clone(), space()).prop_map(|(a, value, b)| format!("{a}{value}{b}"));
        let member = (space(), key(), space(), inner, space())
            .prop_map(|(a, key, b, value, c)| format!("{a}{key}{b}:{c}{value}{b}"));
        prop_oneof![
            1 => prop::collection::vec(element, 0..4).prop_map(|inside| format!("[{}]", inside.join(","))),
            2 => prop::collection::vec(member, 0..4).prop_map(|inside| format!("{{{}}}", inside.join(","))),
        ]
    });
    (space(), value, space()).prop_map(|(a, value, b)| format!("{a}{value}{b}"))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => name().prop_map(Step::Name),
        2 => (0..3_usize).prop_map(Step::Index),
        1 => (1..3_usize).prop_map(Step::FromEnd),
        1 => Just(Step::Append),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let action = prop_oneof![
        3 => leaf().prop_map(Action::Set),
        3 => (-9..9_i64).prop_map(Action::Add),
        2 => Just(Action::Remove),
    ];
    let appends = |path: &[Step]| path.iter().any(|step| matches!(step, Step::Append));
    (prop::collection::vec(step(), 1..4), action)
        .prop_filter("nothing is removed at [+]", move |(path, action)| {
            !matches!(action, Action::Remove) || !appends(path)
        })
        .prop_map(|(path, action)| Change { path, action })
}

// A failure prints the shrunk input, which reproduces it better than a seed.
proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn edits_of_text_and_of_values_agree(text in document(), changes in prop::collection::vec(change(), 1..5)) {
        let mut text = text;
        let mut value: Value = serde_json::from_str(&text).expect("JSON");
        for change in &changes {
            let edit = parse_edit(&change.text()).expect("an edit");
            let ours = apply(text.as_bytes(), &[edit], "");
            let mut after = value.clone();
            let model = change.model(&mut after);
            prop_assert_eq!(ours.is_ok(), model.is_ok(), "{} {}: {:?}", text, change.text(), ours);
            if let Ok(out) = ours {
                text = String::from_utf8(out).expect("JSON is UTF-8");
                value = after;
            }
            prop_assert_eq!(&serde_json::from_str::<Value>(&text).expect("JSON"), &value, "{}", change.text());
        }
    }

    #[test]
    fn edits_together_are_edits_one_after_the_other(
        text in document(), changes in prop::collection::vec(change(), 0..5)
    ) {
        let edits: Vec<_> = changes.iter().map(|change| parse_edit(&change.text()).expect("an edit")).collect();
        let together = apply(text.as_bytes(), &edits, "");
        let stepwise = edits.iter().try_fold(text.into_bytes(), |text, edit| apply(&text, std::slice::from_ref(edit), ""));
        prop_assert_eq!(together, stepwise);
    }

    /// One member is set or removed; the text around it is unchanged.
    #[test]
    fn text_around_an_edit_stays_byte_for_byte(
        before in prop::collection::vec(document(), 0..3), target in document(), behind in prop::collection::vec(document(), 0..3)
    ) {
        let member = |side: &str, values: &[String]| -> Vec<String> {
            values.iter().enumerate().map(|(n, value)| format!(" \"{side}{n}\" :{}", value.trim())).collect()
        };
        let (before, behind) = (member("x", &before), member("y", &behind));
        let whole = |middle: Option<String>| {
            let all: Vec<_> = before.iter().cloned().chain(middle).chain(behind.iter().cloned()).collect();
            format!("{{{}}}", all.join(","))
        };
        let edit = |text: &str| parse_edit(text).expect("an edit");
        let text = whole(Some(format!(" \"t\" :\t{}", target.trim())));
        let set = apply(text.as_bytes(), &[edit("t=new")], "").expect("edited");
        prop_assert_eq!(String::from_utf8(set).expect("UTF-8"), whole(Some(" \"t\" :\t\"new\"".to_owned())));
        let removed = apply(text.as_bytes(), &[edit("rm:t")], "").expect("edited");
        let rest = String::from_utf8(removed).expect("UTF-8");
        prop_assert_eq!(rest, whole(None));
    }

    #[test]
    fn any_edit_text_is_parsed_or_refused_and_leaves_json(
        text in document(), edit in "(rm:|time:|delete:)?[a-b.\\[\\]0-1+:=\\\\é\"-]{0,10}(\\+\\+|--|=|:=)?[a0-9\"+-]{0,3}"
    ) {
        if let Ok(edit) = parse_edit(&edit)
            && let Ok(out) = apply(text.as_bytes(), &[edit], "2026-11-15T08:42:00Z")
        {
            prop_assert!(check(&out, LIMITS).is_ok());
        }
    }
}
