//! Tuples of any length up to sixteen.

/// Has `$tuple` write implementations for each length of tuples.
macro_rules! for_tuples {
    ($tuple:ident) => {
        $tuple!();
        $tuple!(A 0);
        $tuple!(A 0, B 1);
        $tuple!(A 0, B 1, C 2);
        $tuple!(A 0, B 1, C 2, D 3);
        $tuple!(A 0, B 1, C 2, D 3, E 4);
        $tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
        $tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
        $tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
        $tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
        $tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
        $tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
        $tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);
        $tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12);
        $tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13);
        $tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14);
        $tuple!(
            A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14, P 15
        );
    };
}

pub(crate) use for_tuples;
