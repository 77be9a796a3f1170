import AppParts

/// What a screen asks a model before a person has written anything, by its task.
enum Examples {
    static func question(for task: ShelvedModel.Task) -> Question {
        switch task {
        case .labels, .values: Question("A charming and often affecting journey.")
        case .value: Question("A man is playing a guitar.", "Somebody plays an instrument.")
        case .entities: Question("On Monday Maria flew from Lisbon to Oslo with three colleagues.")
        case .search: Question("When does the shop close?")
        case .answer:
            Question(
                "Who built the lighthouse?",
                "The lighthouse at the end of the pier was built by the engineer Robert Stone in 1887. It has been lit by "
                    + "electricity since 1931, and its light can be seen from twenty miles away.")
        }
    }

    /// Labels for a model that takes a person's own.
    static let labels = "film, travel, food"

    static let sentences = [
        "The shop closes at six.",
        "A man is playing a guitar.",
        "It rained all day.",
        "The train to the coast leaves from platform four.",
        "She ordered a coffee without sugar.",
        "The museum is free on the first Sunday of the month.",
        "My phone's battery lasts two days.",
        "The children built a castle of sand.",
        "He forgot his keys at the office.",
        "The recipe needs three eggs and a cup of flour.",
        "The meeting was moved to Thursday morning.",
        "A dog sleeps in front of the fire.",
        "The doctor told him to rest for a week.",
        "Tickets can be bought on the bus.",
        "The lake is frozen from December to March.",
        "They painted the kitchen yellow.",
    ]
}
