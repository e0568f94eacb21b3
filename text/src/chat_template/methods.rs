//! Methods of Python's strings that templates call, as far as minijinja has them not, or not whole.

use minijinja::value::{Kwargs, Value, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Characters of padding that no template needs more of.
const MOST_PADDING: usize = 1 << 16;

/// What `value.method(args)` is.
pub fn call(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, method, args);
    };
    match method {
        "split" => {
            let (by, most) = split_args(args)?;
            let most = most.and_then(|most| i64::try_from(most).ok()).unwrap_or(-1);
            unknown_method_callback(state, value, method, &[by.into(), most.into()])
        }
        "rsplit" => {
            let (by, most) = split_args(args)?;
            Ok(rsplit(text, by.as_deref(), most.unwrap_or(usize::MAX)))
        }
        "partition" => {
            let by = separator(args)?;
            Ok(list(
                text.split_once(by).map_or([text, "", ""], |(before, behind)| [before, by, behind]),
            ))
        }
        "rpartition" => {
            let by = separator(args)?;
            Ok(list(
                text.rsplit_once(by)
                    .map_or(["", "", text], |(before, behind)| [before, by, behind]),
            ))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "index" => {
            let (part,): (&str,) = from_args(args)?;
            let at = text.find(part).ok_or_else(|| refused("substring not found"))?;
            Ok(text[..at].chars().count().into())
        }
        "ljust" | "rjust" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            let missing = width.saturating_sub(text.chars().count());
            if missing > MOST_PADDING {
                return Err(refused("too much padding"));
            }
            let fill = String::from(fill.unwrap_or(' ')).repeat(missing);
            Ok(if method == "ljust" { format!("{text}{fill}") } else { fill + text }.into())
        }
        _ => unknown_method_callback(state, value, method, args),
    }
}

/// What text is split at, blanks if that is none, and how often, at every place if that is none.
fn split_args(args: &[Value]) -> Result<(Option<String>, Option<usize>), Error> {
    let (by, most, named): (Option<String>, Option<i64>, Kwargs) = from_args(args)?;
    let by = by.map_or_else(|| named.get("sep"), |it| Ok(Some(it)))?;
    let most = most.map_or_else(|| named.get::<Option<i64>>("maxsplit"), |it| Ok(Some(it)))?;
    named.assert_all_used()?;
    if by.as_deref() == Some("") {
        return Err(refused("empty separator"));
    }
    Ok((by, most.and_then(|most| usize::try_from(most).ok())))
}

fn separator(args: &[Value]) -> Result<&str, Error> {
    let (by,): (&str,) = from_args(args)?;
    if by.is_empty() { Err(refused("empty separator")) } else { Ok(by) }
}

/// Python's `rsplit`.
fn rsplit(text: &str, by: Option<&str>, most: usize) -> Value {
    let mut parts: Vec<&str> = Vec::new();
    match by {
        Some(by) => parts.extend(text.rsplitn(most.saturating_add(1), by)),
        None => {
            let mut rest = text.trim_end();
            while parts.len() < most
                && let Some((before, part)) = rest.rsplit_once(char::is_whitespace)
            {
                parts.push(part);
                rest = before.trim_end();
            }
            parts.extend((!rest.is_empty()).then_some(rest));
        }
    }
    parts.reverse();
    list(parts)
}

fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    texts.into_iter().map(Value::from).collect()
}

fn refused(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
