mod random;

use super::*;
use crate::Error;
use kernels::KV_BLOCK;

fn append(table: &mut PageTable, tokens: &[u32]) {
    table.reserve(tokens.len()).unwrap().commit(tokens);
}

/// A sequence of `tokens`, run in one step.
fn sequence(pool: &PagePool, tokens: &[u32]) -> PageTable {
    let mut table = pool.table();
    append(&mut table, tokens);
    table
}

/// `pages` full pages that begin with page `first` of a text in which no two pages are equal.
fn text(pages: std::ops::Range<u32>) -> Vec<u32> {
    let page = KV_BLOCK as u32;
    (pages.start * page..pages.end * page).collect()
}

#[test]
fn a_prompt_adopts_the_full_pages_of_one_before() {
    let pool = PagePool::new(8);
    let first = sequence(&pool, &text(0..3));
    let pages = first.pages().to_vec();
    let mut second = pool.table();
    let longer = [text(0..3), vec![7]].concat();
    assert_eq!(second.resume(&longer), 3 * KV_BLOCK);
    assert_eq!((second.pages(), second.tokens()), (&pages[..], first.tokens()));
    assert_eq!(pool.statistics().shared, 3);
    drop((first, second));
    assert_eq!((pool.free(), pool.held(), pool.cached()), (5, 0, 3));
    assert_eq!(pool.cached_prefix(&longer), CachedPrefix { tokens: 3 * KV_BLOCK, idle: 3 });
}

/// What a conversation has said is not run again, wherever a page ends, and needs no copy.
#[test]
fn a_sequence_goes_on_in_the_last_page_of_one_that_is_gone() {
    let pool = PagePool::new(8);
    let said: Vec<u32> = (0..100).collect();
    let first = sequence(&pool, &said);
    let pages = first.pages().to_vec();
    let mut second = pool.table();
    let longer: Vec<u32> = (0..120).collect();
    assert_eq!(second.resume(&longer), KV_BLOCK, "the first one may still write into its last");
    drop(first);
    assert_eq!((pool.held(), pool.cached()), (1, 1));
    assert_eq!(second.resume(&longer), 100);
    assert_eq!(second.pages(), pages);
    append(&mut second, &longer[100..]);
    assert_eq!((second.pages(), pool.statistics().copies), (&pages[..], 0));
    // Which nobody finds while it is written.
    assert_eq!(pool.table().resume(&longer), KV_BLOCK);
    drop(second);
    assert_eq!(pool.table().resume(&longer), 119);
    pool.forget_prefixes();
    assert_eq!((pool.table().resume(&longer), pool.free()), (0, 8));
}

/// A system prompt ends where it ends.
#[test]
fn of_a_page_with_other_tokens_behind_the_beginning_is_copied() {
    let pool = PagePool::new(8);
    let text = |own: u32| (0..90).chain((0..30).map(|at| own + at)).collect::<Vec<_>>();
    drop(sequence(&pool, &text(1000)));
    let mut tables = Vec::new();
    for own in [2000, 3000] {
        let mut table = pool.table();
        assert_eq!(table.resume(&text(own)), 90);
        append(&mut table, &text(own)[90..]);
        tables.push(table);
    }
    assert_eq!(pool.statistics().copies, 2);
    assert_eq!(pool.table().resume(&text(1000)), 119, "it is still there");
    // Two adopt it before either writes.
    let mut twice = [pool.table(), pool.table()];
    for table in &mut twice {
        assert_eq!(table.resume(&text(4000)), 90);
    }
    for table in &mut twice {
        append(table, &text(4000)[90..]);
    }
    // A few tokens are as well run.
    let few: Vec<u32> = (0..5).chain(500..550).collect();
    assert_eq!(pool.table().resume(&few), 0);
    // Of several the one that has the most, and of these one that has nothing else.
    drop((tables, twice));
    assert_eq!(pool.table().resume(&text(3000)), 119);
}

#[test]
fn at_least_one_token_is_left_to_run() {
    let pool = PagePool::new(8);
    let _first = sequence(&pool, &text(0..3));
    let mut second = pool.table();
    assert_eq!(second.resume(&text(0..3)), 3 * KV_BLOCK - 1);
    assert_eq!(
        second.resume(&text(0..1)),
        KV_BLOCK - 1,
        "its own tokens, without a page that is cut"
    );
    assert_eq!(second.resume(&[]), 0);
    assert_eq!(second.pages().len(), 0);
}

#[test]
fn a_page_is_found_only_behind_the_pages_it_was_computed_behind() {
    let pool = PagePool::new(8);
    let _first = sequence(&pool, &text(0..2));
    let mut other = pool.table();
    assert_eq!(other.resume(&text(1..3)), 0, "the same tokens at another place");
    let tail_elsewhere = [text(5..6), text(1..3)].concat();
    assert_eq!(other.resume(&tail_elsewhere), 0, "the same tokens behind others");
}

#[test]
fn a_sequence_keeps_its_own_tokens_where_the_cache_has_no_more() {
    let pool = PagePool::new(8);
    let mut table = sequence(&pool, &(0..100).collect::<Vec<_>>());
    let rewritten: Vec<u32> = (0..80).chain(200..220).collect();
    assert_eq!(table.resume(&rewritten), 80);
    assert_eq!(table.pages().len(), 2);
    let statistics = pool.statistics();
    assert_eq!((statistics.prefix_tokens_looked_up, statistics.prefix_tokens_found), (20, 0));
}

#[test]
fn equal_pages_become_one() {
    let pool = PagePool::new(8);
    let (mut one, mut two) = (pool.table(), pool.table());
    let rows = 2 * KV_BLOCK + 1;
    let (a, b) = (one.reserve(rows).unwrap(), two.reserve(rows).unwrap());
    assert_eq!(pool.held(), 6);
    let tokens = [text(0..2), vec![9]].concat();
    a.commit(&tokens);
    b.commit(&tokens);
    assert_eq!(one.pages()[..2], two.pages()[..2]);
    assert_ne!(one.pages()[2], two.pages()[2]);
    assert_eq!((pool.held(), pool.statistics().shared), (4, 2));
}

#[test]
fn without_a_prefix_cache_nothing_is_found() {
    let pool = PagePool::without_prefix_cache(4);
    let table = sequence(&pool, &text(0..2));
    assert_eq!(pool.table().resume(&text(0..3)), 0);
    drop(table);
    assert_eq!((pool.free(), pool.cached()), (4, 0));
}

#[test]
fn the_least_recently_used_page_goes_first_and_children_before_parents() {
    let pool = PagePool::new(4);
    drop(sequence(&pool, &text(0..2)));
    drop(sequence(&pool, &text(10..12)));
    assert_eq!((pool.free(), pool.cached()), (0, 4));
    let cached = |from: u32| pool.cached_prefix(&text(from..from + 3)).tokens / KV_BLOCK;
    // The older of the two is used again, so that the other has become the oldest.
    assert_eq!(pool.table().resume(&text(0..3)), 2 * KV_BLOCK);
    let mut taken = pool.table();
    append(&mut taken, &[1]);
    assert_eq!((cached(0), cached(10)), (2, 1), "its last page, not its first");
    append(&mut taken, &[1; KV_BLOCK]);
    assert_eq!((cached(0), cached(10)), (2, 0));
    append(&mut taken, &[1; KV_BLOCK]);
    assert_eq!((cached(0), cached(10)), (1, 0));
    assert_eq!(pool.statistics().evictions, 3);
    pool.forget_prefixes();
    assert_eq!((pool.free(), cached(0)), (1, 0));
}

#[test]
fn a_parent_in_use_outlives_its_children_in_the_cache() {
    let pool = PagePool::new(3);
    drop(sequence(&pool, &text(0..3)));
    let mut table = pool.table();
    assert_eq!(table.resume(&[text(0..1), vec![9]].concat()), KV_BLOCK);
    append(&mut table, &[0; 2 * KV_BLOCK]);
    assert_eq!(pool.held(), 3);
    drop(table);
    assert_eq!(pool.cached_prefix(&text(0..3)).tokens, KV_BLOCK);
}

#[test]
fn the_writer_of_a_shared_page_gets_a_copy() {
    let pool = PagePool::new(4);
    let mut one = sequence(&pool, &[5; 10]);
    let mut two = one.fork();
    assert_eq!((pool.held(), pool.statistics().shared), (1, 1));
    let shared = one.pages()[0];
    let reservation = two.reserve(1).unwrap();
    let to = reservation.pages()[0];
    assert_eq!(reservation.copy(), Some(PageCopy { from: shared, to, tokens: 10 }));
    reservation.commit(&[6]);
    assert_eq!((one.pages(), two.pages()), (&[shared][..], &[to][..]));
    assert_eq!(one.reserve(1).unwrap().copy(), None, "nobody else has it any more");
    assert_eq!(pool.statistics().copies, 1);
}

#[test]
fn forks_that_end_at_a_full_page_need_no_copy() {
    let pool = PagePool::new(4);
    let mut one = sequence(&pool, &text(0..1));
    let mut two = one.fork();
    append(&mut one, &[1]);
    append(&mut two, &[2]);
    assert_eq!((pool.held(), pool.statistics().copies), (3, 0));
}

#[test]
fn a_page_that_is_cut_and_that_nobody_has_is_written_in_place() {
    let pool = PagePool::new(4);
    let mut table = sequence(&pool, &text(0..1));
    assert_eq!(pool.cached_prefix(&text(0..2)).tokens, KV_BLOCK);
    table.truncate(10);
    let reservation = table.reserve(1).unwrap();
    assert_eq!(reservation.copy(), None);
    drop(reservation);
    assert_eq!(pool.cached_prefix(&text(0..2)).tokens, 0, "rows of a failed step may be in it");
}

#[test]
fn a_truncated_page_with_cached_pages_behind_it_is_copied_while_there_is_room() {
    let pool = PagePool::new(3);
    let mut table = sequence(&pool, &text(0..2));
    table.truncate(10);
    append(&mut table, &[1]);
    assert_eq!(pool.statistics().copies, 1);
    assert_eq!(pool.cached_prefix(&text(0..3)).tokens, 2 * KV_BLOCK);
}

#[test]
fn one_sequence_can_fill_the_whole_pool_again_after_truncating() {
    let pool = PagePool::new(3);
    let mut table = sequence(&pool, &text(0..3));
    table.truncate(10);
    append(&mut table, &[1; 3 * KV_BLOCK - 10]);
    assert_eq!((table.len(), pool.free(), pool.cached()), (3 * KV_BLOCK, 0, 0));
}

#[test]
fn a_reservation_takes_all_or_nothing() {
    let pool = PagePool::new(3);
    let mut one = sequence(&pool, &[1; KV_BLOCK]);
    let mut two = one.fork();
    let before = pool.statistics();
    match two.reserve(3 * KV_BLOCK) {
        Err(Error::OutOfPages { needed: 3, free: 2 }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(pool.statistics(), before);
    let (a, b) = (one.reserve(1).unwrap(), two.reserve(1).unwrap());
    assert_eq!(pool.free(), 0);
    drop((a, b));
    assert_eq!(pool.statistics(), before);
    assert_eq!((one.len(), two.len()), (KV_BLOCK, KV_BLOCK));
}

#[test]
fn rows_that_were_not_written_give_their_pages_back() {
    let pool = PagePool::new(8);
    let mut table = sequence(&pool, &[1; 60]);
    table.reserve(4 * KV_BLOCK).unwrap().commit(&[2; 5]);
    assert_eq!((table.len(), table.pages().len(), pool.held()), (65, 2, 2));
    table.reserve(4 * KV_BLOCK).unwrap().commit(&[]);
    assert_eq!((table.len(), pool.held()), (65, 2));
}

#[test]
fn pages_in_flight_go_to_nobody_until_the_step_ends() {
    let pool = PagePool::new(2);
    let mut table = sequence(&pool, &[1; 10]);
    let reservation = table.reserve(KV_BLOCK).unwrap();
    let in_flight = reservation.in_flight();
    drop(reservation);
    std::thread::spawn(move || drop(table)).join().unwrap();
    assert_eq!((pool.held(), pool.available()), (2, 0));
    assert!(pool.table().reserve(1).is_err());
    drop(in_flight);
    assert_eq!((pool.held(), pool.free()), (0, 2));
}

#[test]
fn a_step_in_flight_does_not_make_the_next_one_copy() {
    let pool = PagePool::new(2);
    let mut table = pool.table();
    let first = table.reserve(1).unwrap();
    let _in_flight = first.in_flight();
    first.commit(&[1]);
    assert_eq!(table.reserve(1).unwrap().copy(), None);
}

#[test]
fn what_replaces_a_page_in_flight_stays_as_long_as_the_pages_behind_it() {
    let pool = PagePool::new(4);
    let one = sequence(&pool, &text(0..1));
    let mut two = pool.table();
    let reservation = two.reserve(2 * KV_BLOCK).unwrap();
    let in_flight = reservation.in_flight();
    reservation.commit(&text(0..2));
    assert_eq!(two.pages()[0], one.pages()[0]);
    drop((one, two));
    assert_eq!((pool.held(), pool.available()), (3, 1));
    drop(in_flight);
    assert_eq!((pool.free(), pool.cached()), (2, 2));
}

#[test]
fn a_prompt_goes_on_from_a_page_with_a_state_behind_it() {
    let pool = PagePool::with_states(12, 4, true);
    let mut first = pool.table();
    append(&mut first, &text(0..2));
    append(&mut first, &[text(2..3), vec![7]].concat());
    // Steps ended behind the second page, and in the fourth.
    assert_eq!(pool.cached_prefix(&text(0..9)).tokens, 2 * KV_BLOCK);
    let mut second = pool.table();
    assert_eq!(second.resume(&text(0..9)), 2 * KV_BLOCK);
    assert_eq!(pool.available_states(), 2, "two have one each, one of which the page keeps");
    append(&mut second, &text(2..4));
    assert_eq!(pool.cached_prefix(&text(0..9)).tokens, 4 * KV_BLOCK);
}

/// However long an answer is, the prompt before it can be gone on from.
#[test]
fn states_of_an_answer_go_before_those_of_its_prompt() {
    let pool = PagePool::with_states(20, 4, true);
    let mut table = sequence(&pool, &text(0..2));
    for token in 0..10 * KV_BLOCK as u32 {
        append(&mut table, &[token % 3]);
    }
    let answered = table.tokens().to_vec();
    assert_eq!(pool.cached_prefix(&[&answered[..], &[1]].concat()).tokens, 12 * KV_BLOCK);
    table.truncate(12 * KV_BLOCK - 1);
    assert!(table.len() > 2 * KV_BLOCK, "some of the answer's are there");
    table.truncate(2 * KV_BLOCK + 1);
    assert_eq!(table.len(), 2 * KV_BLOCK);
}

#[test]
fn pieces_of_a_prompt_end_where_pages_do() {
    let pieces = |mut start: usize, rows: usize, end: usize| {
        let mut pieces = Vec::new();
        while start < end {
            pieces.push(piece(start, rows, end - start));
            start += pieces[pieces.len() - 1];
        }
        pieces
    };
    assert_eq!(pieces(0, 256, 1000), [256, 256, 256, 192, 40]);
    assert_eq!(pieces(10, 256, 330), [246, 64, 10]);
    assert_eq!(pieces(0, 256, 256), [256]);
    assert_eq!(pieces(0, 256, 63), [63]);
    assert_eq!(pieces(100, 16, 140), [16, 12, 12]);
    assert_eq!(pieces(64, 1, 67), [1, 1, 1]);
}

#[test]
fn a_sequence_with_a_state_is_cut_where_one_is_kept() {
    let pool = PagePool::with_states(12, 6, true);
    let mut table = pool.table();
    append(&mut table, &text(0..1));
    append(&mut table, &text(1..3));
    append(&mut table, &[1, 2, 3]);
    table.truncate(3 * KV_BLOCK + 3);
    assert_eq!(table.len(), 3 * KV_BLOCK + 3, "nothing was to be forgotten");
    table.truncate(3 * KV_BLOCK + 2);
    assert_eq!(table.len(), 3 * KV_BLOCK);
    table.truncate(3 * KV_BLOCK - 1);
    assert_eq!(table.len(), KV_BLOCK);
    table.truncate(KV_BLOCK - 1);
    assert_eq!((table.len(), pool.held()), (0, 0));
    drop(table);
    assert_eq!(pool.available_states(), 6);
}

#[test]
fn states_of_pages_give_way_to_those_of_sequences() {
    let pool = PagePool::with_states(12, 3, true);
    drop(sequence(&pool, &text(0..1)));
    drop(sequence(&pool, &text(4..5)));
    let found = |from: u32| pool.cached_prefix(&text(from..from + 2)).tokens;
    assert_eq!((found(0), found(4), pool.available_states()), (KV_BLOCK, KV_BLOCK, 3));
    // The older one is gone on from, so that the other has become the older.
    assert_eq!(pool.table().resume(&text(0..2)), KV_BLOCK);
    let one = sequence(&pool, &[1]);
    let mut two = sequence(&pool, &[2]);
    assert_eq!((found(0), found(4)), (KV_BLOCK, 0));
    append(&mut two, &[2]);
    assert_eq!((found(0), pool.available_states()), (0, 1));
    let reservation = two.reserve(1).unwrap();
    let mut three = one.fork();
    match three.reserve(1) {
        Err(Error::OutOfStates { needed: 1, free: 0 }) => {}
        other => panic!("{other:?}"),
    }
    drop(reservation);
    append(&mut three, &[3]);
}
