//! Extents: what a program says of its arguments' dynamic dimensions, to be checked before a call.

use std::fmt;

/// The reflection attribute of a function that says so:
///
/// ```mlir
/// func.func @add(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xf32>
///     attributes {iree.reflection = {"iree_rt.shapes" = "n; n"}}
/// ```
pub(crate) const ATTRIBUTE: &str = "iree_rt.shapes";

/// The shapes that a function's arguments may have, of those of which it says any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extents(Vec<Option<Vec<Extent>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Extent {
    Any,
    Fixed(usize),
    /// Equal wherever the name is.
    Named(String),
}

impl Extents {
    /// From the text of the attribute: arguments separated by `;`, their dimensions by `,`, each `?`, a
    /// number, or a name. An empty argument is one of which nothing is said; an empty text says
    /// nothing at all.
    ///
    /// # Errors
    /// What is wrong with it: it comes from a file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let shape = |shape: &str| match shape.trim() {
            "" => Ok(None),
            shape => {
                let extents = shape.split(',').map(|extent| Extent::parse(extent.trim()));
                extents.collect::<Result<_, _>>().map(Some)
            }
        };
        text.split(';').map(shape).collect::<Result<_, _>>().map(Self)
    }

    /// Whether it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is of a function that declares arguments of these ranks, where it does.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn check_ranks(&self, declared: &[Option<usize>]) -> Result<(), String> {
        if self.is_empty() {
            return Ok(());
        }
        if self.0.len() != declared.len() {
            return Err(format!("it is of {} arguments, not {}", self.0.len(), declared.len()));
        }
        for (index, (shape, rank)) in self.0.iter().zip(declared).enumerate() {
            if let (Some(shape), Some(rank)) = (shape, rank)
                && shape.len() != *rank
            {
                return Err(format!("argument {index} has rank {rank}, not {}", shape.len()));
            }
        }
        Ok(())
    }

    /// Whether arguments of these shapes (`None` for one that is no tensor) are as it says.
    ///
    /// # Errors
    /// What is not, by the names that `argument` gives.
    pub(crate) fn check<'a>(
        &self,
        shape_of: impl Fn(usize) -> Option<&'a [usize]>,
        argument: impl Fn(usize) -> String,
    ) -> Result<(), String> {
        /// Where a name stands first, and what it is there.
        struct Bound<'a> {
            name: &'a str,
            extent: usize,
            at: (usize, usize),
        }
        let mut bounds: Vec<Bound<'_>> = Vec::new();
        for (index, extents) in self.0.iter().enumerate() {
            let Some(extents) = extents else { continue };
            let shape = shape_of(index)
                .filter(|shape| shape.len() == extents.len())
                .ok_or_else(|| format!("{} is no tensor [{}]", argument(index), Join(extents)))?;
            for (dim, (extent, &is)) in extents.iter().zip(shape).enumerate() {
                match extent {
                    Extent::Any => {}
                    Extent::Fixed(wanted) if *wanted == is => {}
                    Extent::Fixed(wanted) => {
                        let argument = argument(index);
                        return Err(format!("dimension {dim} of {argument} is {is}, not {wanted}"));
                    }
                    Extent::Named(name) => match bounds.iter().find(|bound| bound.name == name) {
                        None => bounds.push(Bound { name, extent: is, at: (index, dim) }),
                        Some(first) if first.extent == is => {}
                        Some(&Bound { extent, at: (other, other_dim), .. }) => {
                            return Err(format!(
                                "dimension {dim} of {} is {is}, and dimension {other_dim} of {} is \
                                 {extent}; both are `{name}`",
                                argument(index),
                                argument(other)
                            ));
                        }
                    },
                }
            }
        }
        Ok(())
    }
}

impl Extent {
    fn parse(text: &str) -> Result<Self, String> {
        let name = |c: char| c.is_alphanumeric() || c == '_';
        if text == "?" {
            Ok(Self::Any)
        } else if let Ok(extent) = text.parse() {
            Ok(Self::Fixed(extent))
        } else if text.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && text.chars().all(name)
        {
            Ok(Self::Named(text.into()))
        } else {
            Err(format!("`{text}` is no extent (a name, a number or ?)"))
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("?"),
            Self::Fixed(extent) => extent.fmt(f),
            Self::Named(name) => f.write_str(name),
        }
    }
}

struct Join<'a>(&'a [Extent]);

impl fmt::Display for Join<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, extent) in self.0.iter().enumerate() {
            write!(f, "{}{extent}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Extents;

    fn check(text: &str, shapes: &[&[usize]]) -> Result<(), String> {
        let extents = Extents::parse(text).unwrap();
        extents.check(|at| shapes.get(at).copied(), |at| format!("argument {at}"))
    }

    #[test]
    fn equal_names_are_equal_extents() {
        assert_eq!(check("n,?;n", &[&[3, 7], &[3]]), Ok(()));
        let error = check("rows, ?; rows", &[&[16384, 2], &[1]]).unwrap_err();
        assert_eq!(
            error,
            "dimension 0 of argument 1 is 1, and dimension 0 of argument 0 is 16384; both are `rows`"
        );
        // Within one argument, too, and over arguments of which nothing is said.
        assert!(check("n,n", &[&[2, 3]]).is_err());
        assert!(check("n;;n", &[&[2], &[9, 9], &[3]]).is_err());
        assert_eq!(check("n;;m", &[&[2], &[9, 9], &[3]]), Ok(()));
    }

    #[test]
    fn numbers_and_ranks_count() {
        assert_eq!(check("4,?", &[&[4, 5]]), Ok(()));
        assert_eq!(check("4,?", &[&[3, 5]]).unwrap_err(), "dimension 0 of argument 0 is 3, not 4");
        assert_eq!(check("4,?", &[&[4]]).unwrap_err(), "argument 0 is no tensor [4, ?]");
        assert!(check("4", &[]).is_err());
    }

    #[test]
    fn what_is_damaged_is_refused() {
        for text in ["n,;n", "-1", "n n", "1x", "99999999999999999999999", "\0", "?,?,"] {
            assert!(Extents::parse(text).is_err(), "{text:?}");
        }
        assert!(Extents::parse("").unwrap().is_empty());
        let two = Extents::parse("n;n").unwrap();
        assert_eq!(two.check_ranks(&[Some(1), None]), Ok(()));
        assert_eq!(two.check_ranks(&[Some(1)]).unwrap_err(), "it is of 2 arguments, not 1");
        assert_eq!(
            two.check_ranks(&[Some(1), Some(2)]).unwrap_err(),
            "argument 1 has rank 2, not 1"
        );
    }
}
