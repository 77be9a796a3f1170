package pocketbert.app

import pocketbert.core.contract.Policy
import pocketbert.core.contract.TrustedKeys

/**
 * Whose models this app takes. The list is compiled in, and never read from what it judges.
 *
 * Make a key and print it in the form that stands here:
 *
 *     pocketbert signing-key new release
 *     pocketbert signing-key show release.pub
 *     pocketbert ship <recipe> --sign release
 *
 * Two keys may stand here while one follows the other.
 */
object TrustedKeysOfApp {
    private val ENCODED = emptyList<String>()

    /** What the app takes: in a debug build also models that nobody signed, under a banner; in a release build signed ones alone. */
    fun policy(isDebug: Boolean) = Policy(TrustedKeys(ENCODED), unsigned = isDebug)
}
