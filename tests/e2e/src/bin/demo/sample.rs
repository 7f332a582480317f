//! A short sample of chats: three teams with a system prompt each, two chats a team.

/// One chat: the team whose system prompt it shares, a name, and what the user says.
pub struct Chat {
    /// Name in the table.
    pub name: &'static str,
    /// Index into [`SYSTEMS`].
    pub team: usize,
    /// The user's turns.
    pub turns: [&'static str; 3],
}

/// Who the assistant is, and the rules it repeats to the model with every request.
pub const SYSTEMS: [(&str, &[&str]); 3] = [
    (
        "You answer customers of a bicycle shop by mail. Be friendly, short and exact.",
        &[
            "A frame is under warranty for ten years, a battery for two years or 500 full cycles, whichever comes first.",
            "Refunds go back to the card that paid, within five working days after the parcel has been scanned.",
            "Never promise a date of delivery that the carrier has not confirmed; offer the tracking number instead.",
            "A customer who mentions a fall or a crash is asked first whether everybody is well, and is told not to ride the bicycle before a mechanic has seen the fork.",
            "Spare parts for models older than twelve years are made to order; quote three weeks, and say that it is an estimate.",
            "Opening hours are Tuesday to Saturday from ten to six; on Mondays the workshop works behind closed doors and answers no telephone.",
            "Prices include tax. Business customers with a tax number get an invoice without it, but only before the order is paid.",
        ],
    ),
    (
        "You review changes to a storage engine written in C++. Find faults, not matters of taste.",
        &[
            "A page is 16 KiB with a checksum in its last eight bytes; whoever writes a page writes the checksum last.",
            "Locks are taken from the root to the leaves and released in the opposite order; a writer that cannot upgrade starts over.",
            "Every error from the file system is returned to the caller with the path and the offset; it is never logged and swallowed.",
            "Recovery replays the log from the last checkpoint and may run twice; a change that is not idempotent is a fault.",
            "No allocation in the path of a read. Buffers come from the pool of the session and go back when the cursor closes.",
            "A comment says why. One that repeats the code is a reason to ask for its removal, one that contradicts it is a fault.",
            "A test that sleeps is a test that fails on a Friday: ask for a condition to wait for, and a limit for the waiting.",
        ],
    ),
    (
        "You plan journeys by train in Europe. Prefer few changes over few minutes.",
        &[
            "Connections of less than twelve minutes between two operators are not proposed, even where one ticket covers both.",
            "Night trains with couchettes are named with the date of departure and the date of arrival, because travellers book the wrong night.",
            "A bicycle needs its own reservation on nearly every long-distance train; say so before the traveller asks.",
            "In July and August propose a second choice for every train along the coast; they are sold out for weeks.",
            "Prices are rough and rounded to ten; the operator's own page is named as the place that knows.",
            "Travellers with children under six are told about family compartments, and that these can be reserved only by telephone in some countries.",
            "When a border is crossed by regional train, mention that the ticket of one side may end at the last station before it.",
        ],
    ),
];

/// The chats, in the order in which they take turns.
pub const CHATS: [Chat; 6] = [
    Chat {
        name: "shop/battery",
        team: 0,
        turns: [
            "Hello, the battery of my Tourer is flat after twenty kilometres. I bought it in spring last year. Is that covered?",
            "It says 412 cycles in the menu. What do you need from me so that you can exchange it, and how long will it take?",
            "Thank you. Can I ride with the old one until the new one is here, or does that do harm to the motor?",
        ],
    },
    Chat {
        name: "review/cursor",
        team: 1,
        turns: [
            "Please look at this: Cursor::next() now allocates a std::string for the key of each row, so that callers may keep it.",
            "The author answers that only the export uses it. Would a variant that copies into a buffer of the caller do?",
            "And the test waits 200 ms for the background flush. What would you ask for instead?",
        ],
    },
    Chat {
        name: "train/lisbon",
        team: 2,
        turns: [
            "Two adults and a child of four from Hamburg to Lisbon in the second week of August, please without a flight.",
            "We can leave two days earlier. Does that make the part along the coast any easier to book?",
            "We would like to take one bicycle with us as well. On which of these trains would that work?",
        ],
    },
    Chat {
        name: "shop/fork",
        team: 0,
        turns: [
            "Good morning, I fell over a tram rail yesterday and the front wheel rubs since then. Can you send me a new wheel?",
            "I am well, only a bruise. The fork looks straight to me. Do I really have to bring it in?",
            "All right. I can come on Monday at nine. Will somebody be there to take it?",
        ],
    },
    Chat {
        name: "review/replay",
        team: 1,
        turns: [
            "This change makes recovery append a marker to the log for each transaction that it has replayed. Any objection?",
            "They would now skip the marker if it is already there. It reads the last page of the log for that. Enough?",
            "One more: the checksum is computed before the page header is filled in. The tests pass. Should I worry?",
        ],
    },
    Chat {
        name: "train/oslo",
        team: 2,
        turns: [
            "From Zurich to Oslo with as few changes as possible, any day next week. I do not mind a night on the way.",
            "Which night would that be exactly, from which station does it leave, and when am I there?",
            "What would it cost roughly, with a bed and not a seat, and where would I buy the ticket?",
        ],
    },
];

/// The system prompt of a team, as one text.
pub fn system(team: usize) -> String {
    let (role, rules) = SYSTEMS[team];
    let mut text = format!("{role}\n\nRules:\n");
    for (number, rule) in rules.iter().enumerate() {
        text.push_str(&format!("{}. {rule}\n", number + 1));
    }
    text
}
