//! Responses that others may go on from.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Messages;

/// Most bytes of what is kept: the oldest go first.
const MOST_BYTES: usize = 64 << 20;

/// What is kept in memory, and lost with the program.
#[derive(Default)]
pub(crate) struct Store {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    responses: HashMap<String, Entry>,
    /// The response that has an item.
    items: HashMap<String, String>,
    /// Their ids by age; of some that were removed, too.
    ages: VecDeque<String>,
    bytes: usize,
}

/// As JSON, which takes a small part of the memory that its values do.
struct Entry {
    /// All that has been said, with the response.
    messages: Box<str>,
    response: Box<str>,
    /// The ids of its items.
    items: Vec<String>,
}

impl Entry {
    fn bytes(&self) -> usize {
        // An item's id is there three times, once with that of its response.
        let items = self.items.iter().map(|id| 4 * id.len());
        self.messages.len() + self.response.len() + items.sum::<usize>()
    }
}

impl Kept {
    fn remove(&mut self, id: &str) -> bool {
        let removed = self.responses.remove(id);
        self.bytes -= removed.as_ref().map_or(0, Entry::bytes);
        for item in removed.iter().flat_map(|it| &it.items) {
            self.items.remove(item);
        }
        removed.is_some()
    }
}

impl Store {
    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the response `id`, at whose end `messages` have been said.
    pub fn keep(&self, id: &str, messages: &Messages, response: &Value) {
        let items = response["output"].as_array().into_iter().flatten();
        let items: Vec<_> =
            items.filter_map(|item| Some(item["id"].as_str()?.to_owned())).collect();
        let entry = Entry { messages: written(messages), response: written(response), items };
        let mut kept = self.kept();
        kept.bytes += entry.bytes();
        kept.items.extend(entry.items.iter().map(|item| (item.clone(), id.to_owned())));
        kept.responses.insert(id.to_owned(), entry);
        kept.ages.push_back(id.to_owned());
        while kept.bytes > MOST_BYTES
            && let Some(oldest) = kept.ages.pop_front()
        {
            kept.remove(&oldest);
        }
    }

    /// What had been said at the end of the response `id`.
    pub fn messages(&self, id: &str) -> Option<Messages> {
        self.read(id, |entry| &entry.messages)
    }

    /// The response `id`.
    pub fn response(&self, id: &str) -> Option<Value> {
        self.read(id, |entry| &entry.response)
    }

    /// All items of the response that has the item `id`.
    pub fn items_beside(&self, id: &str) -> Vec<Value> {
        let response = self.kept().items.get(id).cloned();
        match response.and_then(|it| self.response(&it)).map(|mut it| it["output"].take()) {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        }
    }

    fn read<T: DeserializeOwned>(&self, id: &str, part: impl Fn(&Entry) -> &str) -> Option<T> {
        let text = self.kept().responses.get(id).map(|entry| part(entry).to_owned())?;
        // What has values in each other deeper than JSON is read is lost.
        serde_json::from_str(&text).ok()
    }

    /// Forgets the response `id`; whether it was there.
    pub fn remove(&self, id: &str) -> bool {
        let mut kept = self.kept();
        if let Some(at) = kept.ages.iter().position(|it| it == id) {
            kept.ages.remove(at);
        }
        kept.remove(id)
    }
}

fn written(value: &impl Serialize) -> Box<str> {
    serde_json::to_string(value).expect("values without maps of odd keys").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let store = Store::default();
        let response = |n: usize| Value::from("x".repeat(20 << 20) + &n.to_string());
        for n in 0..4 {
            store.keep(&n.to_string(), &Vec::new(), &response(n));
        }
        assert_eq!(store.response("0"), None);
        assert_eq!(store.response("1"), Some(response(1)));
        assert!(store.remove("1") && !store.remove("1"));
        store.keep("4", &Vec::new(), &response(4));
        assert!(["2", "3", "4"].iter().all(|id| store.messages(id).is_some()));
        assert!(store.kept().bytes <= MOST_BYTES);
        assert_eq!(store.kept().ages.len(), 3);
    }

    #[test]
    fn an_item_is_there_as_long_as_its_response() {
        let store = Store::default();
        let items =
            json!([{"id": "rs_1", "type": "reasoning"}, {"id": "msg_1", "type": "message"}]);
        store.keep("resp_1", &Vec::new(), &json!({"output": items}));
        assert_eq!(Value::from(store.items_beside("msg_1")), items);
        let nothing: [Value; 0] = [];
        assert_eq!(store.items_beside("resp_1"), nothing);
        assert_eq!(store.items_beside("msg_2"), nothing);
        assert!(store.remove("resp_1"));
        assert_eq!(store.items_beside("msg_1"), nothing);
        let kept = store.kept();
        assert_eq!((kept.bytes, kept.items.len()), (0, 0));
    }

    #[test]
    fn what_is_too_deep_to_be_read_is_not_there() {
        let store = Store::default();
        let deep = (0..200).fold(Value::Null, |deep, _| Value::Array(vec![deep]));
        store.keep("deep", &Vec::new(), &deep);
        assert_eq!(store.response("deep"), None);
        assert_eq!(store.messages("deep"), Some(Vec::new()));
    }
}
