import AppModels
import AppParts
import SwiftUI

/// Asks one model what a person writes, while it is written.
struct TryScreen: View {
    private static let pause = Duration.milliseconds(250)

    @Bindable var model: TryModel
    @State private var editsSet = false

    /// What an answer depends on: where it changes, the model is asked again.
    private struct Asked: Equatable {
        let model: ShelvedModel.ID?
        let question: Question
        let sentences: [String]
    }

    var body: some View {
        Cards {
            Card {
                ModelPicker(title: "Model", models: model.models, selection: chosen)
                inputs
            }
            AnswerCard(model: model)
        }
        .navigationTitle("Try")
        .sheet(isPresented: $editsSet) { SentencesScreen(search: model.search) }
        .task(id: Asked(model: model.chosen?.id, question: model.question, sentences: model.search.sentences)) {
            // Whoever writes is waited for, so that not every letter is asked for.
            try? await Task.sleep(for: Self.pause)
            if !Task.isCancelled { model.ask() }
        }
        // Whoever measures on another screen is not to share the processor with this one.
        .onDisappear { model.cancel() }
    }

    private var chosen: Binding<ShelvedModel.ID> {
        Binding(get: { model.chosen?.id ?? "" }, set: { model.choose($0) })
    }

    @ViewBuilder private var inputs: some View {
        switch model.chosen?.task {
        case .labels:
            Input("Text", $model.first)
            Input("Second text, where the model takes one", $model.second)
        case .value:
            Input("First text", $model.first)
            Input("Second text", $model.second)
        case .answer:
            Input("Question", $model.first)
            Input("Passage", $model.second)
        case .search:
            Input("What to look for", $model.first)
            Button("Edit the sentences…", systemImage: "list.bullet.rectangle") { editsSet = true }
                .frame(minHeight: Theme.target)
        case .entities: Input("Text", $model.first)
        case nil: EmptyView()
        }
    }
}

/// A field for a text that grows with it.
struct Input: View {
    private let name: LocalizedStringKey
    @Binding private var text: String

    init(_ name: LocalizedStringKey, _ text: Binding<String>) {
        self.name = name
        _text = text
    }

    var body: some View {
        VStack(alignment: .leading, spacing: 4) {
            // The field has the name as its label; a reader of the screen would hear it twice.
            Text(name).font(.caption).foregroundStyle(.secondary).accessibilityHidden(true)
            TextField(name, text: $text, axis: .vertical)
                .lineLimit(1...8)
                .textFieldStyle(.roundedBorder)
                .accessibilityLabel(Text(name))
        }
    }
}

/// The answer, and apart from it how long it took.
private struct AnswerCard: View {
    let model: TryModel

    var body: some View {
        Card {
            switch model.state {
            case .idle(let missing): Text(verbatim: missing ?? "").foregroundStyle(.secondary)
            case .working: Working(progress: model.search.progress)
            case .failed(let sentence): Problem(sentence: sentence)
            case .answered(let reply):
                AnswerView(answer: reply.answer, question: reply.question, neighbours: model.search.found)
                Divider()
                Timing(reply: reply)
            }
        }
        .animation(.default, value: model.state)
    }
}

private struct Working: View {
    let progress: (done: Int, all: Int)?

    var body: some View {
        if let progress {
            ProgressView(value: Double(progress.done), total: Double(max(progress.all, 1))) {
                Text("Embedding the sentences")
            } currentValueLabel: {
                Text(verbatim: "\(progress.done) / \(progress.all)").monospacedDigit()
            }
        } else {
            ProgressView().frame(maxWidth: .infinity, minHeight: Theme.target).accessibilityLabel(Text("Computing"))
        }
    }
}

/// How long an answer took: in the runtime, and apart from it in the tokenizer.
struct Timing: View {
    let reply: Reply

    var body: some View {
        Fact("Inference", Formats.ms(reply.inferenceMs))
        Fact("Tokenisation", Formats.ms(reply.tokenizeMs))
        Fact("Tokens", "\(reply.tokens) / \(reply.length)")
        Fact("Opening the model", Formats.ms(reply.openedMs))
        if let limit = reply.cutAt {
            Problem(sentence: String(localized: "The text is longer than the model takes: its end was not read."))
            Fact("Most tokens", "\(limit)")
        }
    }
}
