//! What goes on while a model is brought.

/// Hears what goes on while a model is brought, which may take minutes. `()` does not listen.
pub trait Progress: Send + Sync {
    /// A line for people.
    fn say(&self, line: &str) {
        let _ = line;
    }

    /// The file `name` is on its way, of `size` bytes if that is known: what is returned is told how many are there, and
    /// of how many, and is dropped at the end.
    fn transfer<'a>(&'a self, name: &str, size: Option<u64>) -> Transferred<'a> {
        let _ = (name, size);
        Box::new(|_, _| {})
    }
}

/// Is told how many bytes there are, and of how many, if that is known.
pub type Transferred<'a> = Box<dyn Fn(u64, Option<u64>) + 'a>;

impl Progress for () {}
