import AppModels
import AppParts
import Charts
import SwiftUI

/// Two models on the same text, side by side: how long each takes, and how large it is.
struct CompareScreen: View {
    private static let pause = Duration.milliseconds(400)

    /// What a comparison depends on: where it changes, both are run again.
    private struct Asked: Equatable {
        let models: [ShelvedModel.ID]
        let first: String
        let second: String
    }

    @Bindable var model: CompareModel
    @Environment(\.horizontalSizeClass) private var width
    @Environment(\.dynamicTypeSize) private var type

    var body: some View {
        Cards {
            if model.sides.isEmpty {
                Card { Text("Two models make a comparison: ship another one.") }
            } else {
                Card {
                    Input("Text", $model.first)
                    if model.takesTwo { Input("Second text, or the passage", $model.second) }
                    Button(model.isRunning ? "Stop" : "Run both", systemImage: model.isRunning ? "stop.fill" : "play.fill") {
                        if model.isRunning { model.cancel() } else { model.run() }
                    }
                    .buttonStyle(.borderedProminent)
                    .frame(minHeight: Theme.target)
                }
                Verdict(model: model)
                sides
            }
        }
        .navigationTitle("Compare")
        .task(id: Asked(models: model.sides.map(\.id), first: model.first, second: model.second)) {
            // Whoever writes is waited for.
            try? await Task.sleep(for: Self.pause)
            if !Task.isCancelled { model.run() }
        }
        .onDisappear { model.cancel() }
    }

    /// Beside each other where there is room, below each other where letters are large.
    @ViewBuilder private var sides: some View {
        let layout =
            width == .regular && !type.isAccessibilitySize
            ? AnyLayout(HStackLayout(alignment: .top, spacing: Theme.spacing)) : AnyLayout(VStackLayout(spacing: Theme.spacing))
        layout {
            ForEach(model.sides.indices, id: \.self) { place in
                SideCard(model: model, place: place)
            }
        }
    }
}

/// The bars, and the sentence of 2019: so much less time.
private struct Verdict: View {
    let model: CompareModel

    var body: some View {
        Card {
            if let verdict = model.verdict {
                Text(verbatim: verdict)
                    .font(.largeTitle.weight(.bold))
                    .foregroundStyle(Theme.student)
                    .contentTransition(.numericText())
                    .accessibilityLabel(Text(verbatim: "\(model.sides[0].model.name): \(verdict)"))
            } else {
                Text("Run both to see how much less time the smaller one takes.").foregroundStyle(.secondary)
            }
            Chart {
                ForEach(model.sides.indices, id: \.self) { place in
                    let side = model.sides[place]
                    BarMark(x: .value("Latency", side.medianMs ?? 0), y: .value("Model", "\(place + 1). \(side.model.name)"))
                        .foregroundStyle(place == 0 ? Theme.student : Theme.reference)
                        .annotation(position: .trailing) {
                            Text(verbatim: Formats.ms(side.medianMs)).font(.caption).monospacedDigit()
                        }
                        .accessibilityLabel(Text(verbatim: side.model.name))
                        .accessibilityValue(Text(verbatim: Formats.ms(side.medianMs)))
                }
            }
            .chartXAxisLabel("Median of the last runs, ms")
            .frame(minHeight: 140)
        }
        .animation(.default, value: model.verdict)
    }
}

private struct SideCard: View {
    let model: CompareModel
    let place: Int

    private var side: CompareModel.Side { model.sides[place] }

    var body: some View {
        Card {
            ModelPicker(
                title: place == 0 ? "First model" : "Second model", models: model.models,
                selection: Binding(get: { side.id }, set: { model.choose($0, for: place) }))
            Fact("Median", Formats.ms(side.medianMs))
            Fact("Size", Formats.megabytes(side.model.model.entry.bytes))
            if let problem = side.problem { Problem(sentence: problem) }
            if let reply = side.reply {
                Fact("Tokens", "\(reply.tokens) / \(reply.length)")
                Divider()
                if case .embedding(let embedding) = reply.answer {
                    Fact("Numbers of the embedding", "\(embedding.count)")
                } else {
                    AnswerView(answer: reply.answer, question: reply.question)
                }
            }
        }
    }
}
