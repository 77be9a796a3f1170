package pocketbert.core.contract

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pocketbert.core.VECTORS
import pocketbert.core.flag
import pocketbert.core.objects
import pocketbert.core.readJson
import pocketbert.core.text
import pocketbert.core.textOrNull
import pocketbert.core.texts
import java.io.File
import java.security.KeyPairGenerator
import java.util.Base64

/** Signed models, whole and tampered with (`tests/apps/tampered.py`): each is refused for the reason that Python has. */
class SignedBundleTest {
    private val home = File(VECTORS, "signed")
    private val table = readJson(File(home, "cases.json").readText())
    private val keys = TrustedKeys(table.texts("keys"))

    @TestFactory
    fun cases(): List<DynamicTest> {
        val cases = table.objects("cases")
        println("signatures: ${cases.size} cases, ${cases.count { it.textOrNull("reason") != null }} of them refused")
        return cases.map { case ->
            DynamicTest.dynamicTest(case.text("folder")) {
                val (first, second) = Models.open(Folder(File(home, case.text("folder"))), Policy(keys, case.flag("debug")))
                val reason = case.textOrNull("reason")
                if (reason == null) {
                    val model = (first as? Listed.Usable)?.model ?: throw (first as Listed.Broken).error
                    if (case.flag("debug")) assertNull(model.signedBy) else assertTrue(checkNotNull(model.signedBy).length == 64)
                } else {
                    val error = (first as Listed.Broken).error
                    assertEquals(reason, (error as? SignatureRefused)?.reason?.word, error.message)
                    assertTrue("($reason)" in error.message.orEmpty())
                }
                assertTrue(second is Listed.Usable, "the other model stays usable")
            }
        }
    }

    @Test
    fun `without a trusted key nothing is taken`() {
        val listed = Models.open(Folder(File(home, "whole")), Policy(TrustedKeys(emptyList())))
        assertTrue(listed.all { ((it as Listed.Broken).error as SignatureRefused).reason == Reason.OTHER_KEY })
    }

    @Test
    fun `a trusted key is of ECDSA P-256`() {
        val other = KeyPairGenerator.getInstance("EC").apply { initialize(384) }.generateKeyPair().public.encoded
        for (text in listOf("", "%", "AAAA", Base64.getEncoder().encodeToString(other))) {
            assertThrows(IllegalArgumentException::class.java) { TrustedKeys(listOf(text)) }
        }
    }
}
