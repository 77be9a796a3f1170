import AppParts
import Core
import SwiftUI
import UIKit

/// One screen for all: ask a model, measure it, or watch a run that a computer asked for.
struct LegacyScreen: View {
    private static let minutes = 2.0

    @StateObject private var model: LegacyModel

    init(model: @autoclosure @escaping () -> LegacyModel) { _model = StateObject(wrappedValue: model()) }

    var body: some View {
        NavigationView {
            Form {
                if let run = model.run {
                    Section(header: Text("Benchmark for a computer")) { Text(verbatim: run) }
                } else {
                    asking
                }
                measuring
                if let problem = model.problem { Section { Text(verbatim: problem) } }
            }
            .navigationTitle(Text(verbatim: "PocketBERT"))
        }
        .navigationViewStyle(.stack)
        .task {
            UIApplication.shared.isIdleTimerDisabled = true
            if let end = await model.start() { exit(end.state == .finished ? 0 : 1) }
        }
    }

    @ViewBuilder private var asking: some View {
        Section(header: Text("Model")) {
            Picker("Model", selection: $model.chosen) {
                ForEach(model.models) { Text(verbatim: "\($0.name) · \($0.detail)").tag($0.id) }
            }
            TextField("Text", text: $model.first)
            if model.takesTwo { TextField("Second text, or the passage", text: $model.second) }
            Button("Ask") { model.ask() }.disabled(model.isMeasuring)
        }
        if let reply = model.reply {
            Section(header: Text("Answer")) {
                Text(verbatim: shown(reply))
                row("Inference", Formats.ms(reply.inferenceMs))
                row("Tokenisation", Formats.ms(reply.tokenizeMs))
                row("Opening the model", Formats.ms(reply.openedMs))
            }
        }
    }

    @ViewBuilder private var measuring: some View {
        Section(header: Text("Benchmark")) {
            if let progress = model.progress {
                ProgressView(value: min(max(progress.done, 0), 1)) { Text(verbatim: progress.sentence) }
            }
            if model.run == nil {
                Button(model.isMeasuring ? "Stop" : "Measure") {
                    if model.isMeasuring { model.cancel() } else { model.measure(minutes: Self.minutes) }
                }
            }
            if let record = model.record {
                ForEach(record.lengths) { row("Median", "\($0.length): \(Formats.ms($0.latencies.p50))") }
                row("First inference", Formats.ms(record.firstMs))
            }
        }
    }

    private func row(_ name: LocalizedStringKey, _ value: String) -> some View {
        HStack {
            Text(name)
            Spacer(minLength: 12)
            Text(verbatim: value).monospacedDigit()
        }
        .accessibilityElement(children: .combine)
    }

    private func shown(_ reply: Reply) -> String {
        switch reply.answer {
        case .labels(let shares): shares.map { "\($0.label) \(Formats.percent($0.share))" }.joined(separator: "\n")
        case .value(let value): Formats.value(value)
        case .span(let found): Segment.split(reply.question.second ?? "", found.map { [$0] } ?? []).first { $0.found != nil }?.text ?? "–"
        case .entities(let found):
            Segment.split(reply.question.first, found).compactMap { part in part.found.map { "\(part.text): \($0.kind ?? "")" } }
                .joined(separator: "\n")
        case .embedding(let embedding): "\(embedding.count)"
        case .hidden: "–"
        }
    }
}
